import { collectivesSuite, failureSuite } from "@mosaic/conformance";
import { beforeAll, describe, test, vi } from "vitest";
import { oneHostPerRank, type HostOf, twoRanksPerHost, alternatingHosts, makeWorld, oneHost } from "./ranks.ts";

// By default, UCX uses its own shared memory between ranks of this machine. Between hosts it uses TCP.
const worlds: readonly [name: string, hostOf: HostOf, tls: string | undefined][] = [
  ["each on a separate host", oneHostPerRank, "tcp"],
  ["each on a separate host, over the transport that UCX chooses", oneHostPerRank, undefined],
  ["two per host", twoRanksPerHost, "tcp"],
  ["alternating between two hosts", alternatingHosts, "tcp"],
  ["on one host", oneHost, undefined],
];

describe.each(worlds)("ranks %s", (_, hostOf, tls) => {
  beforeAll(() => {
    vi.stubEnv("UCX_TLS", tls);
    return () => vi.unstubAllEnvs();
  });
  const makeUcxWorld = makeWorld({ network: tls === undefined ? undefined : "lo" }, hostOf);
  const suite = [...collectivesSuite(makeUcxWorld), ...failureSuite(makeUcxWorld)];
  test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());
});
