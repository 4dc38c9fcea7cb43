import { randomBytes } from "node:crypto";
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { type ProcessOutcome, testDir } from "./harness.ts";
import { type Env, job, listExitCodes, scriptArgs, waitForOutcomes } from "./nodes.ts";

/**
 * Maximum time in which a launcher with an error exits. It allows for a busy host, where the start of Node takes
 * seconds. A launcher that waits for the missing nodes takes 300 s.
 */
const MAX_EXIT_MS = 20_000;

describe("the launchers of a job on several nodes", () => {
  const runMismatchedNodes = async (
    [options0, entry0, env0]: [string[], string[], Env?],
    [options1, entry1, env1]: [string[], string[], Env?],
  ): Promise<{ first: ProcessOutcome; second: ProcessOutcome }> => {
    const node = job();
    const waitingNode = node(0, ["-N", "3", ...options0], entry0, env0);
    await waitingNode.waitForOutput("missing n1, n2");
    const startTime = performance.now();
    const second = await node(1, options1, entry1, env1).outcome;
    expect(performance.now() - startTime).toBeLessThan(MAX_EXIT_MS);
    if (!second.stderr.includes("shared secrets do not match") && !second.stderr.includes("--rdzv-id")) {
      const first = await waitingNode.outcome;
      expect(first.code).toBe(2);
      return { first, second };
    }
    waitingNode.child.kill("SIGTERM");
    return { first: await waitingNode.outcome, second };
  };
  const threeNodeOptions = ["-N", "3"];

  it("end with an error when their entries differ", async () => {
    writeFileSync(join(testDir(), "other.mjs"), "// another program\n");
    const { first, second } = await runMismatchedNodes([[], scriptArgs()], [threeNodeOptions, ["other.mjs"]]);
    expect(second.code).toBe(2);
    for (const { stderr } of [first, second])
      expect(stderr).toMatch(
        /node 1 \(\S+\) runs "other\.mjs", node 0 \(\S+\) runs ".*node\.mjs"; use the same script and arguments on all nodes/,
      );
  });

  it("end with an error when their arguments or numbers of nodes differ", async () => {
    expect(
      (await runMismatchedNodes([[], scriptArgs("a")], [threeNodeOptions, scriptArgs("b")])).first.stderr,
    ).toContain("use the same script and arguments on all nodes");
    const { stderr } = (await runMismatchedNodes([[], scriptArgs()], [["-N", "2"], scriptArgs()])).second;
    expect(stderr).toMatch(
      /--nnodes mismatch: node 1 \(\S+\) uses 2, node 0 \(\S+\) uses 3; pass the same --nnodes on all nodes/,
    );
  });

  it("end with an error when two of them have the same node rank", async () => {
    const node = job();
    const firstNode = node(0, threeNodeOptions, scriptArgs());
    const secondNode = node(1, threeNodeOptions, scriptArgs());
    await firstNode.waitForOutput("2/3 nodes; missing n2");
    const duplicateNode = node(1, threeNodeOptions, scriptArgs());
    const nodeOutcomes = await waitForOutcomes([firstNode, secondNode, duplicateNode]);
    expect(listExitCodes(nodeOutcomes)).toEqual([2, 2, 2]);
    for (const { stderr } of nodeOutcomes)
      expect(stderr).toMatch(
        /duplicate --node-rank 1: on \S+ and on \S+ \(127\.0\.0\.1\); each launcher needs a unique --node-rank/,
      );
  });

  it("reject a different secret without printing it, and continue to wait", async () => {
    const otherSecret = randomBytes(32).toString("hex");
    const env = { MOSAIC_TOKEN_FILE: undefined, MOSAIC_TOKEN: otherSecret };
    const { first, second } = await runMismatchedNodes([[], scriptArgs()], [threeNodeOptions, scriptArgs(), env]);
    expect(second.code).toBe(2);
    expect(second.stderr).toMatch(
      /127\.0\.0\.9:\d+: connection refused: the shared secrets do not match; set the same MOSAIC_TOKEN_FILE/,
    );
    expect(first.stderr).toContain("a connection from 127.0.0.1 was refused: the shared secrets do not match");
    expect(first.code).toBe(143);
    expect(first.stderr + second.stderr).not.toContain(otherSecret);
  });

  it("reject a launcher with a different --rdzv-id, and continue to wait", async () => {
    const { first, second } = await runMismatchedNodes(
      [[], scriptArgs()],
      [[...threeNodeOptions, "--rdzv-id", "x"], scriptArgs()],
    );
    expect(second.code).toBe(2);
    expect(second.stderr).toMatch(
      /uses x, the job at this endpoint uses t-.*; pass the same ID, or use a different endpoint/,
    );
    expect(first.code).toBe(143);
  });

  it("reject a node that arrives when the job is already running", async () => {
    const node = job();
    const nodes = [0, 1].map((rank) => node(rank, ["-N", "2"], scriptArgs("waits", "9")));
    for (const runningNode of nodes) await runningNode.waitForOutput("waits");
    const lateOutcome = await node(1, ["-N", "2"], scriptArgs("waits", "9")).outcome;
    expect(lateOutcome.stderr).toMatch(/the job is already running attempt 0 with 2 nodes: duplicate --node-rank 1/);
    expect(lateOutcome.code).toBe(75);
    nodes[1]?.child.kill("SIGTERM");
    expect(listExitCodes(await waitForOutcomes(nodes))).toEqual([143, 143]);
  });

  it("end together when one of them receives a signal while they wait for others", async () => {
    const node = job();
    const nodes = [0, 1].map((rank) => node(rank, threeNodeOptions, scriptArgs()));
    await nodes[1]?.waitForOutput("2/3 nodes; missing n2");
    nodes[1]?.child.kill("SIGINT");
    expect(listExitCodes(await waitForOutcomes(nodes))).toEqual([130, 130]);
  });

  it("refuse to start without a valid secret or with an endpoint of another host", async () => {
    const node = job();
    const start = async (env: Env): Promise<string> => {
      const { code, stderr } = await node(0, ["-N", "2"], scriptArgs(), { MOSAIC_TOKEN_FILE: undefined, ...env })
        .outcome;
      expect(code).toBe(2);
      return stderr;
    };
    expect(await start({})).toMatch(
      /a job on several nodes requires the same secret of at least 32 bytes on all nodes; create it with/,
    );
    expect(await start({ MOSAIC_TOKEN: "short" })).toMatch(
      /MOSAIC_TOKEN: expected a secret of 32 to 1024 bytes, received 5/,
    );
    const token = join(testDir(), "token");
    chmodSync(token, 0o644);
    expect(await start({ MOSAIC_TOKEN_FILE: token })).toMatch(/other users have access to the secret; run chmod 600/);
    expect(await start({ MOSAIC_TOKEN_FILE: "none" })).toMatch(/MOSAIC_TOKEN_FILE none: cannot be read: ENOENT/);
    chmodSync(token, 0o600);
    const ownOutcome = await node(0, ["-N", "2", "--rdzv-endpoint", "192.0.2.1:29400"], scriptArgs()).outcome;
    expect(ownOutcome.stderr).toMatch(/192\.0\.2\.1 is not an address of this host; run node 0 on the endpoint's host/);
    expect(ownOutcome.code).toBe(2);
  });
});
