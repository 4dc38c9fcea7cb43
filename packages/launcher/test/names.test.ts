import { randomBytes } from "node:crypto";
import type { LookupAddress } from "node:dns";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { formatAddress, parseAddress } from "../src/agent/network.ts";
import { RendezvousError, UsageError } from "../src/errors.ts";
import type { NodesPlan } from "../src/launch-plan.ts";
import { bindAddress } from "../src/nodes/address.ts";
import { INDEX, mosaicRun, program, type RunningProcess, testDir } from "./harness.ts";

type Env = Readonly<Record<string, string>>;

/** Creates a name lookup that succeeds from the n-th call on. */
function createLookup(
  addresses: readonly LookupAddress[],
  firstAnsweredCall = 1,
): () => Promise<readonly LookupAddress[]> {
  let numLookups = 0;
  return async () => {
    if (++numLookups < firstAnsweredCall) throw new Error("getaddrinfo ENOTFOUND train-0.train");
    return addresses;
  };
}

const createPlan = (host: string, changes: Partial<NodesPlan> = {}): NodesPlan => ({
  ...{ min: 2, max: 2, nodeRank: 0, endpoint: { host, port: 29_400 }, timeoutMs: 60_000, lastCallMs: 0 },
  ...{ bindsAllAddresses: false, commandText: "", digest: "", ...changes },
});
const v4 = { address: "10.0.0.1", family: 4 };
const v6 = { address: "fd00::1", family: 6 };
const resolver = { isEnding: () => false, onWaiting: () => {} };

describe("the address that node 0 listens at", () => {
  it("is resolved from the endpoint, with IPv4 preferred and loopback addresses excluded", async () => {
    const resolveBindAddress = (...addresses: LookupAddress[]): Promise<string> =>
      bindAddress(createPlan("train-0.train"), { ...resolver, lookup: createLookup(addresses) });
    expect(await resolveBindAddress(v4)).toBe("10.0.0.1");
    expect(await resolveBindAddress(v6)).toBe("fd00::1");
    expect(await resolveBindAddress(v6, v4)).toBe("10.0.0.1");
    expect(await resolveBindAddress({ address: "127.0.1.1", family: 4 }, v6)).toBe("fd00::1");
    await expect(
      resolveBindAddress({ address: "127.0.1.1", family: 4 }, { address: "::1", family: 6 }),
    ).rejects.toThrow(UsageError);
    expect(await bindAddress(createPlan("fd00::2"), resolver)).toBe("fd00::2");
    expect(await bindAddress(createPlan("fd00::2", { bindsAllAddresses: true }), resolver)).toBe("::");
    expect(await bindAddress(createPlan("train-0.train", { bindsAllAddresses: true }), resolver)).toBe("0.0.0.0");
  });

  it("is looked up again until the name can be resolved", async () => {
    const lookup = createLookup([v4], 4);
    expect(await bindAddress(createPlan("train-0.train"), { ...resolver, lookup })).toBe("10.0.0.1");
  });

  it("is looked up until the deadline or the end of the job, and the failed lookup is reported", async () => {
    const waitingMessages: string[] = [];
    const lookup = createLookup([], Number.POSITIVE_INFINITY);
    const startTime = performance.now();
    await expect(
      bindAddress(createPlan("train-0.train", { timeoutMs: 1300 }), {
        ...resolver,
        lookup,
        onWaiting: (one) => waitingMessages.push(one),
      }),
    ).rejects.toThrow(/--rdzv-endpoint train-0\.train: cannot be resolved: getaddrinfo ENOTFOUND .*; correct the name/);
    expect(performance.now() - startTime).toBeGreaterThanOrEqual(1290);
    expect(waitingMessages).toEqual([
      expect.stringMatching(/^waiting for name resolution: --rdzv-endpoint train-0\.train: cannot be/),
    ]);
    await expect(bindAddress(createPlan("x"), { ...resolver, lookup, isEnding: () => true })).rejects.toThrow(
      RendezvousError,
    );
  });
});

it("IPv6 addresses are formatted and parsed in brackets", () => {
  for (const [host, port, text] of [
    ["::1", 1, "[::1]:1"],
    ["fe80::1%eth0", 29_400, "[fe80::1%eth0]:29400"],
    ["10.0.0.1", 2, "10.0.0.1:2"],
    ["train-0.train", 3, "train-0.train:3"],
  ] as const) {
    expect(formatAddress(host, port)).toBe(text);
    expect(parseAddress(text)).toEqual({ host, port });
  }
});

/**
 * Module that replaces Node's name lookup in a launcher. `late.test` has an address once the file TEST_HOSTS contains
 * it.
 */
const RESOLVER = `
import dns from "node:dns";
import { readFileSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
const find = (name) => {
  const line = readFileSync(process.env.TEST_HOSTS, "utf8").split("\\n").find((one) => one.endsWith(" " + name));
  return line?.split(" ")[0];
};
const missing = (name) => Object.assign(new Error("getaddrinfo ENOTFOUND " + name), { code: "ENOTFOUND" });
dns.promises.lookup = async (name) => {
  if (!find(name)) throw missing(name);
  return [{ address: find(name), family: find(name).includes(":") ? 6 : 4 }];
};
dns.lookup = (name, options, callback) => {
  const address = find(name);
  const family = address?.includes(":") ? 6 : 4;
  process.nextTick(() =>
    address === undefined ? callback(missing(name)) : options.all ? callback(null, [{ address, family }]) : callback(null, address, family),
  );
};
syncBuiltinESMExports();
`;

describe("a job at an endpoint", () => {
  let lastPort = 33_000 + (process.pid % 100) * 10;
  const secret = randomBytes(32).toString("hex");
  const startNode = (rank: number, endpoint: string, options: readonly string[] = [], env: Env = {}): RunningProcess =>
    mosaicRun(
      ["-N", "2", "--node-rank", `${rank}`, "--rdzv-endpoint", endpoint, "-n1", ...options, program("node.mjs")],
      { env: { TEST_INDEX: INDEX, MOSAIC_TOKEN: secret, ...env } },
    );
  const waitForNodes = async (nodes: readonly RunningProcess[]): Promise<string[]> => {
    const nodeOutcomes = await Promise.all(nodes.map(({ outcome }) => outcome));
    for (const { code, stderr } of nodeOutcomes) expect(code, stderr).toBe(0);
    return nodeOutcomes.map(({ stdout }) => stdout);
  };

  it("accepts an IPv6 address in brackets", async () => {
    const endpoint = `[::1]:${lastPort++}`;
    expect(await waitForNodes([startNode(0, endpoint), startNode(1, endpoint)])).toEqual([
      "[0] attempt 0: 0 0 2 1 0 2 ::1\n",
      "[1] attempt 0: 1 0 2 1 1 2 ::1\n",
    ]);
  });

  it("waits until the name can be resolved after the launchers have been started", async () => {
    const [hosts, stub] = [join(testDir(), "hosts"), join(testDir(), "resolver.mjs")];
    writeFileSync(hosts, "");
    writeFileSync(stub, RESOLVER);
    const env = { TEST_HOSTS: hosts, NODE_OPTIONS: `--import ${stub}` };
    const endpoint = `late.test:${lastPort++}`;
    const nodes = [startNode(0, endpoint, ["--bind-any"]), startNode(1, endpoint, [], env)];
    const refusedNode = startNode(0, `late.test:${lastPort++}`, [], env);
    await nodes[1]?.waitForOutput("waiting for node 0 at late.test:");
    expect(nodes[1]?.output()).toContain("ENOTFOUND late.test");
    await refusedNode.waitForOutput("waiting for name resolution: --rdzv-endpoint late.test: cannot be resolved");
    writeFileSync(hosts, "127.0.0.7 late.test\n");
    const [, secondOutcome] = await waitForNodes(nodes);
    expect(secondOutcome).toMatch(/^\[1\] attempt 0: 1 0 2 1 1 2 127\.0\.0\.7\n/);
    // Without --bind-any, node 0 refuses to listen at an address that other hosts cannot reach.
    const { code, stderr } = await refusedNode.outcome;
    expect(stderr).toContain("--rdzv-endpoint late.test: resolves to 127.0.0.7 on this host");
    expect(code).toBe(2);
  });
});
