export { RendezvousError, UsageError } from "./errors.ts";
export type {
  Exit,
  Failure,
  LaunchEvent,
  LaunchOptions,
  LineEvent,
  LostNode,
  RankError,
  RankExit,
  Result,
  StreamName,
} from "./job.ts";
export { type Job, launch, start } from "./launch.ts";
export { createDirectory } from "./output/rank-log.ts";
export { connectStore, Store, type StoreOptions, type WaitOptions } from "./store/client.ts";
export { STORE_LIMITS, PROTOCOL_VERSION, type StoreCode, StoreError } from "./store/protocol.ts";
export { StoreServer, type StoreServerOptions } from "./store/server.ts";
