import { randomBytes } from "node:crypto";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { encode } from "../src/agent/frames.ts";
import { connectTls, TLS_PROTOCOLS } from "../src/agent/tls.ts";
import type { Registration } from "../src/nodes/registration.ts";
import {
  listChildren,
  readCommand,
  isAlive,
  listLivingProcesses,
  type ProcessOutcome,
  program,
  type RunningProcess,
  temporaryDir,
  testDir,
  waitUntil,
} from "./harness.ts";
import { job, lastJobPort, listExitCodes, scriptArgs, SECRET, splitLines, waitForOutcomes } from "./nodes.ts";

const registration: Registration = {
  ...{ kind: "register", version: 2, launcher: "0.1.0", runtime: "22.18.0", job: "none", nodeRank: 1, minNodes: 2 },
  ...{ maxNodes: 2, nproc: 2, host: "b", command: "train.ts", digest: "9f" },
};

/** Number of repetitions of each fault. */
const numRepeats = Number(process.env.MOSAIC_TEST_REPEAT ?? 1) - 1;

describe("a job on several nodes", () => {
  it("numbers ranks by node in any order of starts, with different numbers of ranks per node", async () => {
    const node = job();
    const nodes = [2, 0, 1].map((rank) => node(rank, ["-N", "3", "-n", String(3 - rank)], scriptArgs()));
    const [thirdOutcome, firstOutcome, secondOutcome] = await waitForOutcomes(nodes);
    expect(listExitCodes([thirdOutcome, firstOutcome, secondOutcome] as ProcessOutcome[])).toEqual([0, 0, 0]);
    const formatLine = (rank: number, local: number, size: number, group: number): string =>
      `[${rank}] attempt 0: ${rank} ${local} 6 ${size} ${group} 3 127.0.0.9`;
    expect(splitLines(firstOutcome as ProcessOutcome)).toEqual([
      formatLine(0, 0, 3, 0),
      formatLine(1, 1, 3, 0),
      formatLine(2, 2, 3, 0),
    ]);
    expect(splitLines(secondOutcome as ProcessOutcome)).toEqual([formatLine(3, 0, 2, 1), formatLine(4, 1, 2, 1)]);
    expect(splitLines(thirdOutcome as ProcessOutcome)).toEqual([formatLine(5, 0, 1, 2)]);
    expect(firstOutcome?.stderr).toBe("");
    expect(secondOutcome?.stderr).toMatch(/^mosaic-run: joined node 0 at 127\.0\.0\.9:\d+ as node 1 of 3\n$/);
  });

  it("has a control plane across all nodes", async () => {
    const node = job();
    const options = ["-N", "2", "-n", "2", "--max-restarts", "1", "--restart-backoff", "1ms", "--failure-grace", "5s"];
    const [firstOutcome, secondOutcome] = await waitForOutcomes(
      [0, 1].map((rank) => node(rank, options, [program("control.mjs")])),
    );
    expect(listExitCodes([firstOutcome, secondOutcome] as ProcessOutcome[])).toEqual([0, 0]);
    for (const attempt of [0, 1])
      expect(`${firstOutcome?.stdout}${secondOutcome?.stdout}`.split(`attempt ${attempt}: `)).toHaveLength(5);
    for (const rank of [2, 3]) expect(secondOutcome?.stdout).toContain(`[${rank}] lost [[1,1]]`);
  });

  it.each([
    { nproc: 1, exiting: 1 },
    { nproc: 1, exiting: 0 },
    { nproc: 2, exiting: 3 },
  ])("ends the rendezvous of $nproc ranks per node when rank $exiting exits with 0", async ({ nproc, exiting }) => {
    const node = job();
    const args = [program("exits-early.mjs"), String(exiting), "job", "300"];
    const [firstOutcome, secondOutcome] = await waitForOutcomes(
      [0, 1].map((rank) => node(rank, ["-N", "2", "-n", String(nproc)], args)),
    );
    expect(listExitCodes([firstOutcome, secondOutcome] as ProcessOutcome[])).toEqual([1, 1]);
    expect(`${firstOutcome?.stdout}${secondOutcome?.stdout}`).toContain(
      `refused: 2 rank ${exiting} of ${2 * nproc} exited before all ranks had joined`,
    );
    expect(firstOutcome?.stderr).toContain(`hint: exited with 0 before the other ranks ended: rank ${exiting}`);
    expect(firstOutcome?.ms).toBeLessThan(15_000);
  });

  it("keeps the secret out of command lines, logs and output", async () => {
    const node = job();
    const nodes = [0, 1].map((rank) =>
      node(rank, ["-N", "2", "--json", "--log-dir", "logs"], scriptArgs("throws", "1"), {
        MOSAIC_TOKEN_FILE: undefined,
        MOSAIC_TOKEN: SECRET,
      }),
    );
    await nodes[1]?.waitForOutput("attempt 0");
    for (const pid of listLivingProcesses()) expect(readCommand(pid)).not.toContain(SECRET);
    const nodeOutcomes = await waitForOutcomes(nodes);
    const logs = readdirSync(join(testDir(), "logs"), { recursive: true, encoding: "utf8" })
      .map((name) => join(testDir(), "logs", name))
      .filter((path) => path.endsWith(".log") || path.endsWith(".json"))
      .map((path) => readFileSync(path, "utf8"));
    expect(logs.length).toBeGreaterThan(3);
    for (const text of [...logs, ...nodeOutcomes.map(({ stdout, stderr }) => stdout + stderr)])
      expect(text).not.toContain(SECRET);
  });

  it("listens only at the endpoint's address unless --bind-any is set, and reports missing nodes", async () => {
    const node = job();
    const waitingNode = node(0, ["-N", "3", "--rdzv-timeout", "2s"], scriptArgs());
    await waitingNode.waitForOutput("mosaic-run: 1/3 nodes; missing n1, n2\n");
    const { code, stderr, ms } = await waitingNode.outcome;
    expect(code).toBe(75);
    expect(stderr).toContain("mosaic-run: rendezvous timed out after 2 s: 1/3 nodes; missing n1, n2; check the output");
    expect(ms).toBeLessThan(5000);
    const openNode = node(0, ["-N", "2"], scriptArgs());
    const port = lastJobPort();
    await waitUntil(
      () => readFileSync("/proc/net/tcp", "utf8").includes(`:${port.toString(16).toUpperCase()} `),
      () => "it does not listen",
    );
    const otherSocket = connect(port, "127.0.0.1");
    expect(await new Promise((resolve) => otherSocket.on("error", ({ message }) => resolve(message)))).toMatch(
      /ECONNREFUSED/,
    );
    openNode.child.kill("SIGTERM");
    expect((await openNode.outcome).code).toBe(143);
    const bindAnyNode = node(0, ["-N", "2", "--bind-any"], scriptArgs());
    await waitUntil(
      () => readFileSync("/proc/net/tcp", "utf8").includes(`00000000:${port.toString(16).toUpperCase()} `),
      () => "it does not listen at all addresses",
    );
    expect(
      (await waitForOutcomes([bindAnyNode, node(1, ["-N", "2"], scriptArgs())])).map(({ code: one }) => one),
    ).toEqual([0, 0]);
  });

  it("starts with MIN nodes when the last call has passed since the last node joined", async () => {
    const node = job();
    const [lastCallMs, options] = [2500, ["-N", "2:3", "--last-call", "2500ms"]];
    const firstNode = node(0, options, scriptArgs());
    // Node 0 prints this about one second after it has begun to wait.
    await firstNode.waitForOutput("1/3 nodes; missing n1, n2");
    const startTime = performance.now();
    const secondNode = node(1, options, scriptArgs());
    await secondNode.waitForOutput("as node 1 of 2");
    expect(performance.now() - startTime).toBeGreaterThan(lastCallMs);
    expect(listExitCodes(await waitForOutcomes([firstNode, secondNode]))).toEqual([0, 0]);
  });

  it("reports that node 0 cannot be reached", async () => {
    const node = job();
    const { code, stderr } = await node(1, ["-N", "2", "--rdzv-timeout", "2s"], scriptArgs()).outcome;
    expect(stderr).toMatch(/mosaic-run: waiting for node 0 at 127\.0\.0\.9:\d+: connect ECONNREFUSED/);
    expect(stderr).toMatch(
      /rendezvous timed out after 2 s: no connection to node 0 at 127\.0\.0\.9:\d+: connect ECONNREF/,
    );
    expect(code).toBe(75);
  });
});

describe("node 0", () => {
  it("survives malformed frames of a peer that has the secret", async () => {
    const node = job();
    const firstNode = node(0, ["-N", "2"], scriptArgs());
    await firstNode.waitForOutput("missing n1");
    const address = `127.0.0.9:${lastJobPort()}`;
    const options = { secret: SECRET, protocol: TLS_PROTOCOLS.node } as const;
    for (let seed = 0; seed < 60; seed++) {
      const socket = await connectTls(address, options);
      socket.on("error", () => {}).resume();
      const foreignFrame = encode({ ...registration, job: "another job" });
      if (seed % 3 === 0) socket.write(foreignFrame);
      if (seed % 3 === 1)
        socket.write(foreignFrame.map((byte, i) => (i === seed % foreignFrame.length ? byte ^ seed : byte)));
      socket.end(randomBytes(seed * 100));
      await new Promise((resolve) => socket.on("close", resolve));
    }
    expect(listExitCodes(await waitForOutcomes([firstNode, node(1, ["-N", "2"], scriptArgs())]))).toEqual([0, 0]);
    expect(firstNode.output()).not.toContain("internal error");
  });
});

describe("a failure, signal or timeout on one node", { repeats: numRepeats }, () => {
  it.each([
    ["0", "node 0"],
    ["3", "node 1"],
  ])("ends all nodes with the exit code of rank %s and one report", async (rank, where) => {
    const node = job();
    const nodes = [0, 1].map((each) => node(each, ["-N", "2", "-n", "2"], scriptArgs("exits", rank)));
    const nodeOutcomes = await waitForOutcomes(nodes);
    expect(listExitCodes(nodeOutcomes)).toEqual([42, 42]);
    const [firstOutcome, secondOutcome] = nodeOutcomes as [ProcessOutcome, ProcessOutcome];
    expect(firstOutcome.stderr).toMatch(new RegExp(`✖ rank ${rank} \\(${where}: \\S+, local \\d, pid \\d+\\) failed`));
    expect(firstOutcome.stderr).toContain("exit 42 · 3 ranks stopped by launcher");
    expect(secondOutcome.stderr).not.toContain("✖");
    expect(secondOutcome.stderr).toMatch(
      new RegExp(`rank ${rank} \\(${where}, \\S+\\) failed; the report is in the output of node 0`),
    );
  });

  it("is reported once, with the stack of an error on another node", async () => {
    const node = job();
    const nodeOutcomes = await waitForOutcomes(
      [0, 1].map((rank) => node(rank, ["-N", "2", "-n", "2"], scriptArgs("throws", "2"))),
    );
    expect(listExitCodes(nodeOutcomes)).toEqual([1, 1]);
    expect(nodeOutcomes[0]?.stderr).toMatch(/✖ rank 2 \(node 1: .*: TypeError: bad loss\n {4}at .*node\.mjs:\d+:\d+/);
    expect((nodeOutcomes[0]?.stderr ?? "") + (nodeOutcomes[1]?.stderr ?? "")).toMatch(
      /^(?:(?!bad loss)[^])*bad loss(?:(?!bad loss)[^])*$/,
    );
  });

  it("restarts all nodes with the same attempt number until no restarts are left", async () => {
    const node = job();
    const options = ["-N", "2", "-n", "1", "--max-restarts", "1", "--restart-backoff", "1ms", "--min-uptime", "0"];
    const successfulOutcomes = await waitForOutcomes(
      [0, 1].map((rank) => node(rank, options, scriptArgs("exits", "1", "0"))),
    );
    expect(listExitCodes(successfulOutcomes)).toEqual([0, 0]);
    for (const { stdout } of successfulOutcomes) expect(stdout).toContain("attempt 1: ");
    const failedOutcomes = await waitForOutcomes(
      [0, 1].map((rank) => node(rank, options, scriptArgs("exits", "1", "0,1"))),
    );
    expect(listExitCodes(failedOutcomes)).toEqual([42, 42]);
    expect(failedOutcomes[0]?.stderr.match(/✖ rank 1/g)).toHaveLength(2);
  });

  it.each([0, 1])("ends all nodes as cancelled after SIGTERM to node %i", async (signalledRank) => {
    const node = job();
    const nodes = [0, 1].map((rank) => node(rank, ["-N", "2"], scriptArgs("waits")));
    for (const runningNode of nodes) await runningNode.waitForOutput("waits");
    nodes[signalledRank]?.child.kill("SIGTERM");
    const nodeOutcomes = await waitForOutcomes(nodes);
    expect(listExitCodes(nodeOutcomes)).toEqual([143, 143]);
    expect(nodeOutcomes[1 - signalledRank]?.stderr).toContain(`SIGTERM`);
  });

  it("ends all nodes with 124 after a timeout on one of them", async () => {
    const node = job();
    const nodeOutcomes = await waitForOutcomes(
      [0, 1].map((rank) => node(rank, ["-N", "2", ...(rank === 1 ? ["--timeout", "1s"] : [])], scriptArgs("waits"))),
    );
    expect(listExitCodes(nodeOutcomes)).toEqual([124, 124]);
  });
});

/** Waits until the guard of a killed launcher has ended its processes and removed its secret. */
async function expectNoProcesses(): Promise<void> {
  await waitUntil(
    () =>
      listLivingProcesses().length === 0 &&
      readdirSync(temporaryDir()).every((name) => !name.startsWith("mosaic-run-")),
    () => "processes or private directories are left",
  );
}

describe("the loss of a node", { repeats: numRepeats }, () => {
  const startNodes = async (count: number, options: readonly string[] = []): Promise<RunningProcess[]> => {
    const node = job();
    const nodes = Array.from({ length: count }, (_, rank) =>
      node(rank, ["-N", String(count), ...options], scriptArgs("waits")),
    );
    for (const runningNode of nodes) await runningNode.waitForOutput("waits");
    return nodes;
  };

  it("ends the other nodes with 75 when a launcher is killed, which leaves no processes", async () => {
    const nodes = await startNodes(3);
    const startTime = performance.now();
    process.kill(nodes[1]?.pid ?? 0, "SIGKILL");
    const [firstOutcome, , thirdOutcome] = await waitForOutcomes(nodes);
    expect(performance.now() - startTime).toBeLessThan(3000);
    expect(listExitCodes([firstOutcome, thirdOutcome] as ProcessOutcome[])).toEqual([75, 75]);
    expect(firstOutcome?.stderr).toMatch(/✖ node 1 \(\S+\) was lost \d+\.\d s into attempt 0: connection closed/);
    await expectNoProcesses();
  });

  it("ends the other nodes with 75 when node 0 is killed", async () => {
    const nodes = await startNodes(2);
    process.kill(nodes[0]?.pid ?? 0, "SIGKILL");
    const [, secondOutcome] = await waitForOutcomes(nodes);
    expect(secondOutcome?.code).toBe(75);
    expect(secondOutcome?.stderr).toMatch(/✖ node 0 \(127\.0\.0\.9:\d+\) was lost/);
    await expectNoProcesses();
  });

  it("is detected by missing heartbeats of a stopped launcher, which ends when it is continued", async () => {
    const nodes = await startNodes(2);
    const startTime = performance.now();
    process.kill(nodes[1]?.pid ?? 0, "SIGSTOP");
    const firstOutcome = await nodes[0]?.outcome;
    expect(firstOutcome?.code).toBe(75);
    expect(firstOutcome?.stderr).toContain("was lost");
    expect(firstOutcome?.stderr).toContain("no heartbeat for 2.5 s");
    expect(performance.now() - startTime).toBeLessThan(4500);
    process.kill(nodes[1]?.pid ?? 0, "SIGCONT");
    expect((await nodes[1]?.outcome)?.code).toBe(75);
  });

  it.each([
    ["SIGTERM", 1, 143],
    ["SIGTERM", 0, 143],
    ["a timeout", 1, 124],
  ] as const)("does not change the result of a job that ends because of %s, if node %i is lost", async (...args) => {
    const [reason, lostRank, exitCode] = args;
    const mayExit = join(testDir(), "may-exit");
    const script = `
      import { existsSync } from "node:fs";
      const { connectStore } = await import(process.env.TEST_INDEX);
      process.on("SIGTERM", () => {
        console.log("received SIGTERM");
        setInterval(() => existsSync("${mayExit}") && process.exit(0), 20);
      });
      const store = await connectStore();
      await store.barrier("all", 2, { member: process.env.RANK });
      console.log("waits");
      setInterval(() => {}, 60_000);`;
    const entry = join(testDir(), "stops-later.mjs");
    writeFileSync(entry, script);
    const options = ["-N", "2", "--grace", "60s", ...(reason === "SIGTERM" ? [] : ["--timeout", "2s"])];
    const node = job();
    const nodes = [0, 1].map((rank) => node(rank, options, [entry])) as [RunningProcess, RunningProcess];
    const [lostNode, otherNode] = lostRank === 0 ? nodes : [nodes[1], nodes[0]];
    for (const runningNode of nodes) await runningNode.waitForOutput("waits");
    if (reason === "SIGTERM") lostNode.child.kill("SIGTERM");
    for (const runningNode of nodes) await runningNode.waitForOutput("received SIGTERM");
    process.kill(lostNode.pid, "SIGKILL");
    await otherNode.waitForOutput("was lost");
    writeFileSync(mayExit, "");
    const { code, stderr } = await otherNode.outcome;
    expect(code).toBe(exitCode);
    expect(stderr).not.toContain("✖");
    await expectNoProcesses();
  });

  it.each([
    ["not reported if a rank failed before", "process.exit(42)", 42, /✖ rank 0 .*: exit 42/],
    [
      "reported instead of a rank that lost its peer before",
      'throw Object.assign(new Error("rank 1 is gone"), { name: "PeerLostError" })',
      75,
      /✖ node 1 \(\S+\) was lost \d+\.\d s into attempt 0/,
    ],
  ])("is %s", async (isReported, statement, exitCode, report) => {
    const script = `
      const { connectStore } = await import(process.env.TEST_INDEX);
      process.on("SIGTERM", () => console.log("ignores SIGTERM"));
      const store = await connectStore();
      await store.barrier("all", 2, { member: process.env.RANK });
      if (process.env.RANK === "0") ${statement};
      setInterval(() => {}, 60_000);`;
    const entry = join(testDir(), "fails-first.mjs");
    writeFileSync(entry, script);
    const node = job();
    const nodes = [0, 1].map((rank) => node(rank, ["-N", "2"], [entry]));
    await nodes[1]?.waitForOutput("ignores SIGTERM");
    process.kill(nodes[1]?.pid ?? 0, "SIGKILL");
    const [firstOutcome] = await waitForOutcomes(nodes);
    expect(firstOutcome?.stderr.slice(firstOutcome.stderr.lastIndexOf("✖")), isReported).toMatch(report);
    expect(firstOutcome?.code).toBe(exitCode);
    await expectNoProcesses();
  });

  it("is followed by a restart with all nodes when its launcher is started again", async () => {
    const node = job();
    const options = ["-N", "2", "--max-restarts", "2", "--restart-backoff", "1ms"];
    const firstNode = node(0, options, scriptArgs("waits"));
    const secondNode = node(1, options, scriptArgs("waits"));
    for (const runningNode of [firstNode, secondNode]) await runningNode.waitForOutput("waits");
    process.kill(secondNode.pid, "SIGKILL");
    await secondNode.outcome;
    await firstNode.waitForOutput("was lost");
    const restartedNode = node(1, options, scriptArgs("waits"));
    expect(listExitCodes(await waitForOutcomes([firstNode, restartedNode]))).toEqual([0, 0]);
    expect(restartedNode.output()).toContain("attempt 1: 1 0 2 1 1 2");
  });

  it("restarts the job on the remaining nodes of MIN:MAX, and a new node joins at the next restart", async () => {
    const node = job();
    const options = ["-N", "2:3", "--last-call", "1500ms", "--max-restarts", "2", "--restart-backoff", "1ms"];
    const nodes = [0, 1, 2].map((rank) => node(rank, options, scriptArgs("waits", "-1", "0,1")));
    for (const runningNode of nodes) await runningNode.waitForOutput("waits");
    process.kill(nodes[1]?.pid ?? 0, "SIGKILL");
    await nodes[0]?.waitForOutput("attempt 1: 0 0 2 1 0 2");
    await nodes[2]?.waitForOutput("attempt 1: 1 0 2 1 1 2");
    const joiningNode = node(1, options, scriptArgs("waits", "-1", "0,1"));
    const ranks = listChildren(nodes[2]?.pid ?? 0).filter((pid) => readCommand(pid).includes("node.mjs"));
    await waitUntil(
      () => ranks.length === 1 && ranks.every(isAlive),
      () => "the rank of node 2 is not there",
    );
    for (const pid of ranks) process.kill(pid, "SIGKILL");
    const [firstOutcome, thirdOutcome, joined] = await waitForOutcomes([
      nodes[0],
      nodes[2],
      joiningNode,
    ] as RunningProcess[]);
    expect(listExitCodes([firstOutcome, thirdOutcome, joined] as ProcessOutcome[])).toEqual([0, 0, 0]);
    expect(joined?.stdout).toContain("attempt 2: 1 0 3 1 1 3");
    expect(thirdOutcome?.stdout).toContain("attempt 2: 2 0 3 1 2 3");
  });
});

it("two nodes with a shared log directory write to the same run directory", async () => {
  const node = job();
  await waitForOutcomes([0, 1].map((rank) => node(rank, ["-N", "2", "--log-dir", "logs"], scriptArgs())));
  const [run = "", ...rest] = readdirSync(join(testDir(), "logs"));
  expect(rest).toEqual([]);
  for (const rank of [0, 1])
    expect(existsSync(join(testDir(), "logs", run, "attempt_0", String(rank), "stdout.log"))).toBe(true);
});
