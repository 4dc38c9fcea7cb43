export { connectStore, Store, type StoreOptions, type Waiting } from "./store/client.ts";
export { type StoreCode, StoreError } from "./store/protocol.ts";
export { StoreServer, type StoreServerOptions } from "./store/server.ts";
