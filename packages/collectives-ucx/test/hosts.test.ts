// Tests between hosts, which are network namespaces that `npm run test:hosts` makes. The agents of the control plane
// are in this process, because ranks share this machine's file system and so the agents' sockets. The data of UCX
// passes the bridge.
import { execFileSync } from "node:child_process";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { processSuite, RankProcesses } from "@mosaic/conformance";
import { afterAll, describe, expect, test } from "vitest";
import { createJobOpener, script } from "./processes.ts";
import { oneHostPerRank, type HostOf, twoRanksPerHost } from "./ranks.ts";
import { digestOverSharedMemory } from "./shared-memory.ts";

// Ranks are started by `process.execPath`, which is replaced by a script that runs them on their hosts. `ip` executes
// the rank by exec, so that its pid is the rank's.
const directory = mkdtempSync(join(tmpdir(), "mosaic-hosts-"));
const node = process.execPath;
const onHost = join(directory, "node");
writeFileSync(onHost, `#!/bin/sh\nexec ip netns exec "n$MOSAIC_TEST_HOST" '${node}' "$@"\n`);
chmodSync(onHost, 0o755);
process.execPath = onHost;
process.env.MOSAIC_TEST_NETWORK = "10.77.0.0/24";
afterAll(() => {
  process.execPath = node;
  rmSync(directory, { recursive: true });
});

const program = { script, openJob: createJobOpener(oneHostPerRank) };

const placements: readonly [name: string, hostOf: HostOf][] = [
  ["a rank on each host", oneHostPerRank],
  ["two ranks on each host", twoRanksPerHost],
];

describe.each(placements)("%s", (_, hostOf) => {
  const suite = processSuite({ script, openJob: createJobOpener(hostOf) });
  test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());
});

/** Returns the bytes that a host has sent to the others. */
function bytesSent(host: number): number {
  const linkJson = execFileSync("ip", ["-json", "-stats", "link", "show", `v${host}`], { encoding: "utf8" });
  const [link] = JSON.parse(linkJson) as { readonly stats64: { readonly rx: { readonly bytes: number } } }[];
  return link!.stats64.rx.bytes;
}

test.each([
  [2, "alone", oneHostPerRank],
  [3, "alone", oneHostPerRank],
  [4, "alone", oneHostPerRank],
  [4, "in pairs", twoRanksPerHost],
  [5, "in pairs", twoRanksPerHost],
] as const)(
  "%i ranks, %s on a host, reduce over the network to the same bits as over shared memory",
  async (...testCase) => {
    const [size, , hostOf] = testCase;
    await using processes = new RankProcesses({ script, openJob: createJobOpener(hostOf) });
    const bytesBefore = bytesSent(0);
    const ranks = await processes.startAll(size, "reduce");
    const digests = await Promise.all(ranks.map(async (rank) => (await rank.waitForEvent("reduced")).digest));
    const expected = await digestOverSharedMemory(size);
    expect(digests).toEqual(digests.map(() => expected));
    expect(bytesSent(0) - bytesBefore).toBeGreaterThan(1 << 20);
    expect(await Promise.all(ranks.map((rank) => rank.exitStatus))).toEqual(ranks.map(() => 0));
  },
);

test("ranks of one host do not use the network", async () => {
  await using processes = new RankProcesses({ script, openJob: createJobOpener(() => 1) });
  const bytesBefore = bytesSent(1);
  const ranks = await processes.startAll(3, "reduce", { MOSAIC_TEST_NETWORK: "eth0" });
  const expected = await digestOverSharedMemory(3);
  for (const rank of ranks) expect((await rank.waitForEvent("reduced")).digest).toBe(expected);
  expect(bytesSent(1) - bytesBefore).toBeLessThan(1 << 16);
});

// Repeated, because the state of UCX when its peer dies is random. When it was sending from memory, 1 of 10 runs
// aborted.
test.each([0, 1])(
  "the death of rank %i during a transfer is reported by the rank of the other host within 2 s",
  async (killedRank) => {
    for (let attempt = 0; attempt < 5; attempt++) {
      await using processes = new RankProcesses(program);
      const ranks = await processes.startAll(2, "streams");
      await Promise.all(ranks.map((rank) => rank.waitForEvent("streaming")));
      const startTime = performance.now();
      process.kill(ranks[killedRank]!.pid, "SIGKILL");
      const { name, message } = await ranks[1 - killedRank]!.waitForEvent("failed");
      expect(name).toBe("PeerLostError");
      expect(message).toMatch(
        new RegExp(`rank ${killedRank} \\(pid ${ranks[killedRank]!.pid} on n${killedRank}\\) died`),
      );
      expect(performance.now() - startTime).toBeLessThan(2000);
      expect(await ranks[1 - killedRank]!.exitStatus).toBe(0);
    }
  },
);

test.each([
  ["its interface goes down", ["-n", "n1", "link", "set", "eth0"]],
  ["its cable is pulled", ["link", "set", "v1"]],
])("a host that loses the network, as %s, makes all ranks report an error, and none crashes", async (_, link) => {
  await using processes = new RankProcesses(program);
  const ranks = await processes.startAll(3, "streams", { MOSAIC_TEST_TIMEOUT: "3" });
  await Promise.all(ranks.map((rank) => rank.waitForEvent("streaming")));
  execFileSync("ip", [...link, "down"]);
  try {
    for (const rank of ranks) {
      const { name, message } = await rank.waitForEvent("failed");
      expect(["CollectiveTimeoutError", "PeerLostError"]).toContain(name);
      expect(message).toMatch(/timed out after 3 s: rank \d waits in sendRecv #\d+ \(world\); rank \d |rank \d .*died/);
    }
    expect(await Promise.all(ranks.map((rank) => rank.exitStatus))).toEqual([0, 0, 0]);
  } finally {
    execFileSync("ip", [...link, "up"]);
  }
});

test("ranks cannot connect over a network that the hosts do not share", async () => {
  await using processes = new RankProcesses(program);
  const ranks = await processes.startAll(2, "reduce", { MOSAIC_TEST_NETWORK: "lo" });
  for (const rank of ranks) {
    const { message } = await rank.waitForEvent("failed");
    expect(message).toMatch(/connect: .*(UCX found no network "lo" that reaches|UCX cannot connect to|timed out)/);
  }
});
