import { randomBytes } from "node:crypto";
import { chmodSync, existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { encode } from "../src/agent/frames.ts";
import { connectTls, TLS_PROTOCOLS } from "../src/agent/tls.ts";
import { ProtocolError } from "../src/agent/wire.ts";
import type { RankError } from "../src/job.ts";
import { decodeDecision, decodeReport, encodeReport } from "../src/nodes/records.ts";
import { findMismatch, waitingMessage, type Registration } from "../src/nodes/registration.ts";
import type { RankRecord } from "../src/report/diagnose.ts";
import {
  listChildren,
  readCommand,
  INDEX,
  isAlive,
  livingProcesses,
  mosaicRun,
  type ProcessOutcome,
  program,
  type RunningProcess,
  temporaryDir,
  testDir,
  until,
} from "./harness.ts";

const registration: Registration = {
  ...{ kind: "register", version: 2, launcher: "0.1.0", runtime: "22.18.0", job: "none", nodeRank: 1, minNodes: 2 },
  ...{ maxNodes: 2, nproc: 2, host: "b", command: "train.ts", digest: "9f" },
};

/** How often each fault is played. */
const repeats = Number(process.env.MOSAIC_TEST_REPEAT ?? 1) - 1;

const SECRET = randomBytes(32).toString("hex");
let lastPort = 21_000 + (process.pid % 1000) * 10;

/** A job of its own: an endpoint that no other test uses. */
function job(): (
  rank: number | undefined,
  options: readonly string[],
  entry: readonly string[],
  env?: Env,
) => RunningProcess {
  const endpoint = `127.0.0.9:${lastPort++}`;
  const token = join(testDir(), "token");
  writeFileSync(token, `${SECRET}\n`, { mode: 0o600 });
  return (rank, options, entry, env = {}) =>
    mosaicRun(
      [...(rank === undefined ? [] : ["--node-rank", String(rank)]), "--rdzv-endpoint", endpoint, ...options, ...entry],
      { env: { TEST_INDEX: INDEX, MOSAIC_TOKEN_FILE: token, ...env } },
    );
}

type Env = Readonly<Record<string, string | undefined>>;

const outcomes = (nodes: readonly RunningProcess[]): Promise<ProcessOutcome[]> =>
  Promise.all(nodes.map(({ outcome }) => outcome));
const codes = (all: readonly ProcessOutcome[]): (number | null)[] => all.map(({ code }) => code);
const splitLines = ({ stdout }: ProcessOutcome): string[] => stdout.trim().split("\n").toSorted();
const runScript = (...args: string[]): string[] => [program("node.mjs"), ...args];

describe("a job on several nodes", () => {
  it("numbers the ranks by node, each with as many as it has, whatever the order of the starts", async () => {
    const node = job();
    const nodes = [2, 0, 1].map((rank) => node(rank, ["-N", "3", "-n", String(3 - rank)], runScript()));
    const [third, first, second] = await outcomes(nodes);
    expect(codes([third, first, second] as ProcessOutcome[])).toEqual([0, 0, 0]);
    const line = (rank: number, local: number, size: number, group: number): string =>
      `[${rank}] attempt 0: ${rank} ${local} 6 ${size} ${group} 3 127.0.0.9`;
    expect(splitLines(first as ProcessOutcome)).toEqual([line(0, 0, 3, 0), line(1, 1, 3, 0), line(2, 2, 3, 0)]);
    expect(splitLines(second as ProcessOutcome)).toEqual([line(3, 0, 2, 1), line(4, 1, 2, 1)]);
    expect(splitLines(third as ProcessOutcome)).toEqual([line(5, 0, 1, 2)]);
    expect(first?.stderr).toBe("");
    expect(second?.stderr).toMatch(/^mosaic-run: joined node 0 at 127\.0\.0\.9:\d+ as node 1 of 3\n$/);
  });

  it("has a control plane over all of them", async () => {
    const node = job();
    const options = ["-N", "2", "-n", "2", "--max-restarts", "1", "--restart-backoff", "1ms", "--failure-grace", "5s"];
    const [first, second] = await outcomes([0, 1].map((rank) => node(rank, options, [program("control.mjs")])));
    expect(codes([first, second] as ProcessOutcome[])).toEqual([0, 0]);
    for (const attempt of [0, 1])
      expect(`${first?.stdout}${second?.stdout}`.split(`attempt ${attempt}: `)).toHaveLength(5);
    for (const rank of [2, 3]) expect(second?.stdout).toContain(`[${rank}] lost [[1,1]]`);
  });

  it("keeps the secret to itself", async () => {
    const node = job();
    const nodes = [0, 1].map((rank) =>
      node(rank, ["-N", "2", "--json", "--log-dir", "logs"], runScript("throws", "1"), {
        MOSAIC_TOKEN_FILE: undefined,
        MOSAIC_TOKEN: SECRET,
      }),
    );
    await nodes[1]?.waitForOutput("attempt 0");
    for (const pid of livingProcesses()) expect(readCommand(pid)).not.toContain(SECRET);
    const all = await outcomes(nodes);
    const logs = readdirSync(join(testDir(), "logs"), { recursive: true, encoding: "utf8" })
      .map((name) => join(testDir(), "logs", name))
      .filter((path) => path.endsWith(".log") || path.endsWith(".json"))
      .map((path) => readFileSync(path, "utf8"));
    expect(logs.length).toBeGreaterThan(3);
    for (const text of [...logs, ...all.map(({ stdout, stderr }) => stdout + stderr)])
      expect(text).not.toContain(SECRET);
  });

  it("listens at the endpoint's address alone, and reports who is missing", async () => {
    const node = job();
    const waiting = node(0, ["-N", "3", "--rdzv-timeout", "2s"], runScript());
    await waiting.waitForOutput("mosaic-run: 1/3 nodes; missing n1, n2\n");
    const { code, stderr, ms } = await waiting.outcome;
    expect(code).toBe(75);
    expect(stderr).toContain("mosaic-run: rendezvous timed out after 2 s: 1/3 nodes; missing n1, n2; check the output");
    expect(ms).toBeLessThan(5000);
    const open = node(0, ["-N", "2"], runScript());
    const port = lastPort - 1;
    await until(
      () => readFileSync("/proc/net/tcp", "utf8").includes(`:${port.toString(16).toUpperCase()} `),
      () => "it does not listen",
    );
    const other = connect(port, "127.0.0.1");
    expect(await new Promise((resolve) => other.on("error", ({ message }) => resolve(message)))).toMatch(
      /ECONNREFUSED/,
    );
    open.child.kill("SIGTERM");
    expect((await open.outcome).code).toBe(143);
    const any = node(0, ["-N", "2", "--bind-any"], runScript());
    await until(
      () => readFileSync("/proc/net/tcp", "utf8").includes(`00000000:${port.toString(16).toUpperCase()} `),
      () => "it does not listen at all addresses",
    );
    expect((await outcomes([any, node(1, ["-N", "2"], runScript())])).map(({ code: one }) => one)).toEqual([0, 0]);
  });

  it("reports that node 0 is not there", async () => {
    const node = job();
    const { code, stderr } = await node(1, ["-N", "2", "--rdzv-timeout", "2s"], runScript()).outcome;
    expect(stderr).toMatch(/mosaic-run: waiting for node 0 at 127\.0\.0\.9:\d+: connect ECONNREFUSED/);
    expect(stderr).toMatch(
      /rendezvous timed out after 2 s: no connection to node 0 at 127\.0\.0\.9:\d+: connect ECONNREF/,
    );
    expect(code).toBe(75);
  });
});

describe("launchers that disagree end within a second", () => {
  const disagree = async (
    [options0, entry0, env0]: [string[], string[], Env?],
    [options1, entry1, env1]: [string[], string[], Env?],
  ): Promise<{ first: ProcessOutcome; second: ProcessOutcome }> => {
    const node = job();
    const waiting = node(0, ["-N", "3", ...options0], entry0, env0);
    await waiting.waitForOutput("missing n1, n2");
    const began = performance.now();
    const second = await node(1, options1, entry1, env1).outcome;
    // Node's own start takes a third of it.
    expect(performance.now() - began).toBeLessThan(2000);
    if (!second.stderr.includes("shared secrets do not match") && !second.stderr.includes("--rdzv-id")) {
      const first = await waiting.outcome;
      expect(first.code).toBe(2);
      return { first, second };
    }
    waiting.child.kill("SIGTERM");
    return { first: await waiting.outcome, second };
  };
  const three = ["-N", "3"];

  it("about the entry", async () => {
    writeFileSync(join(testDir(), "other.mjs"), "// another program\n");
    const { first, second } = await disagree([[], runScript()], [three, ["other.mjs"]]);
    expect(second.code).toBe(2);
    for (const { stderr } of [first, second])
      expect(stderr).toMatch(
        /node 1 \(\S+\) runs "other\.mjs", node 0 \(\S+\) runs ".*node\.mjs"; use the same script and arguments on all nodes/,
      );
  });

  it("about the arguments, the number of nodes", async () => {
    expect((await disagree([[], runScript("a")], [three, runScript("b")])).first.stderr).toContain(
      "use the same script and arguments on all nodes",
    );
    const { stderr } = (await disagree([[], runScript()], [["-N", "2"], runScript()])).second;
    expect(stderr).toMatch(
      /--nnodes mismatch: node 1 \(\S+\) uses 2, node 0 \(\S+\) uses 3; pass the same --nnodes on all nodes/,
    );
  });

  it("about the node ranks", async () => {
    const node = job();
    const first = node(0, three, runScript());
    const second = node(1, three, runScript());
    await first.waitForOutput("2/3 nodes; missing n2");
    const again = node(1, three, runScript());
    const all = await outcomes([first, second, again]);
    expect(codes(all)).toEqual([2, 2, 2]);
    for (const { stderr } of all)
      expect(stderr).toMatch(
        /duplicate --node-rank 1: on \S+ and on \S+ \(127\.0\.0\.1\); each launcher needs a unique --node-rank/,
      );
  });

  it("about the secret: the one is rejected, the other waits on, and neither shows it", async () => {
    const other = randomBytes(32).toString("hex");
    const env = { MOSAIC_TOKEN_FILE: undefined, MOSAIC_TOKEN: other };
    const { first, second } = await disagree([[], runScript()], [three, runScript(), env]);
    expect(second.code).toBe(2);
    expect(second.stderr).toMatch(
      /127\.0\.0\.9:\d+: connection refused: the shared secrets do not match; set the same MOSAIC_TOKEN_FILE/,
    );
    expect(first.stderr).toContain("a connection from 127.0.0.1 was refused: the shared secrets do not match");
    expect(first.code).toBe(143);
    expect(first.stderr + second.stderr).not.toContain(other);
  });

  it("about the job: another one's launcher is rejected, and this one waits on", async () => {
    const { first, second } = await disagree([[], runScript()], [[...three, "--rdzv-id", "x"], runScript()]);
    expect(second.code).toBe(2);
    expect(second.stderr).toMatch(
      /uses x, the job at this endpoint uses t-.*; pass the same ID, or use a different endpoint/,
    );
    expect(first.code).toBe(143);
  });

  it("a node that comes late is rejected, and the job goes on", async () => {
    const node = job();
    const nodes = [0, 1].map((rank) => node(rank, ["-N", "2"], runScript("waits", "9")));
    for (const one of nodes) await one.waitForOutput("waits");
    const late = await node(1, ["-N", "2"], runScript("waits", "9")).outcome;
    expect(late.stderr).toMatch(/the job is already running attempt 0 with 2 nodes: duplicate --node-rank 1/);
    expect(late.code).toBe(75);
    nodes[1]?.child.kill("SIGTERM");
    expect(codes(await outcomes(nodes))).toEqual([143, 143]);
  });

  it("a signal to a node that waits for others ends those that wait with it", async () => {
    const node = job();
    const nodes = [0, 1].map((rank) => node(rank, three, runScript()));
    await nodes[1]?.waitForOutput("2/3 nodes; missing n2");
    nodes[1]?.child.kill("SIGINT");
    expect(codes(await outcomes(nodes))).toEqual([130, 130]);
  });

  it("without a good secret nothing starts", async () => {
    const node = job();
    const start = async (env: Env): Promise<string> => {
      const { code, stderr } = await node(0, ["-N", "2"], runScript(), { MOSAIC_TOKEN_FILE: undefined, ...env })
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
    const own = await node(0, ["-N", "2", "--rdzv-endpoint", "192.0.2.1:29400"], runScript()).outcome;
    expect(own.stderr).toMatch(/192\.0\.2\.1 is not an address of this host; run node 0 on the endpoint's host/);
    expect(own.code).toBe(2);
  });
});

describe("node 0", () => {
  it("survives malformed frames of a peer that has the secret", async () => {
    const node = job();
    const first = node(0, ["-N", "2"], runScript());
    await first.waitForOutput("missing n1");
    const address = `127.0.0.9:${lastPort - 1}`;
    const options = { secret: SECRET, protocol: TLS_PROTOCOLS.node } as const;
    for (let seed = 0; seed < 60; seed++) {
      const socket = await connectTls(address, options);
      socket.on("error", () => {}).resume();
      const stranger = encode({ ...registration, job: "another job" });
      if (seed % 3 === 0) socket.write(stranger);
      if (seed % 3 === 1) socket.write(stranger.map((byte, i) => (i === seed % stranger.length ? byte ^ seed : byte)));
      socket.end(randomBytes(seed * 100));
      await new Promise((resolve) => socket.on("close", resolve));
    }
    expect(codes(await outcomes([first, node(1, ["-N", "2"], runScript())]))).toEqual([0, 0]);
    expect(first.output()).not.toContain("internal error");
  });

  it("compares what launchers must agree in", () => {
    const against = (changes: Partial<Registration>): string =>
      findMismatch({ ...registration, nodeRank: 0, host: "a" }, { ...registration, ...changes })?.message ?? "none";
    expect(against({})).toBe("none");
    expect(against({ runtime: "22.1.0" })).toBe("none");
    expect(against({ runtime: "20.20.0" })).toMatch(
      /node 1 \(b\) uses 20\.20\.0, node 0 \(a\) uses 22\.18\.0; use the same major version/,
    );
    for (const other of [{ launcher: "0.2.0" }, { version: 3 }])
      expect(against(other)).toMatch(
        /launcher version mismatch: node 1 \(b\) uses \S+, node 0 \(a\) uses 0\.1\.0; install the same version/,
      );
    expect(against({ nodeRank: 2 })).toMatch(/expected --node-rank 0 to 1/);
    expect(against({ minNodes: 1 })).toMatch(/--nnodes mismatch: node 1 \(b\) uses 1:2, node 0 \(a\) uses 2;/);
    expect(waitingMessage(new Set([0, 20]), 21)).toBe("2/21 nodes; missing n1, n2, n3, n4, n5, n6, n7, n8 and 11 more");
  });

  it("reads the report of a rank of another node on its own clock, and cuts what is too long", () => {
    const error = (depth: number): RankError => ({
      ...{ name: "E", message: "m".repeat(60_000), stack: "s".repeat(60_000) },
      ...(depth === 0 ? {} : { cause: error(depth - 1) }),
    });
    const lines = Array.from({ length: 30 }, () => "é".repeat(60_000));
    const record: RankRecord = {
      ...{ rank: 3, local: 1, pid: 7, code: 1, signal: null, startedAt: 1000, exitedAt: 2000, stoppedAt: undefined },
      ...{ isKilled: true, thrown: { timeMs: 1900, error: error(6) }, stderrTail: lines, uncaught: lines, log: "/l" },
    };
    const bytes = encodeReport({ record, hint: "h" });
    expect(bytes.length).toBeLessThanOrEqual(65_536);
    const read = decodeReport(bytes, 500);
    expect(read).toMatchObject({
      hint: "h",
      record: { rank: 3, code: 1, startedAt: 1500, exitedAt: 2500, stoppedAt: undefined, isKilled: true },
    });
    expect(read.record.thrown).toMatchObject({ timeMs: 2400, error: { name: "E" } });
    for (const wrong of ["", "[]", "{}", '{"record":{}}', JSON.stringify({ record: { ...record, signal: "SIGNONE" } })])
      expect(() => decodeReport(Buffer.from(wrong), 0)).toThrow(ProtocolError);
    for (const wrong of ["", "[]", '{"failure":{}}', '{"restartInMs":"1"}'])
      expect(() => decodeDecision(Buffer.from(wrong))).toThrow(ProtocolError);
  });
});

describe("a failure on one node", { repeats }, () => {
  it.each([
    ["0", "node 0"],
    ["3", "node 1"],
  ])("of rank %s ends all, with its code, and one report", async (rank, where) => {
    const node = job();
    const nodes = [0, 1].map((each) => node(each, ["-N", "2", "-n", "2"], runScript("exits", rank)));
    const all = await outcomes(nodes);
    expect(codes(all)).toEqual([42, 42]);
    const [first, second] = all as [ProcessOutcome, ProcessOutcome];
    expect(first.stderr).toMatch(new RegExp(`✖ rank ${rank} \\(${where}: \\S+, local \\d, pid \\d+\\) failed`));
    expect(first.stderr).toContain("exit 42 · 3 ranks stopped by launcher");
    expect(second.stderr).not.toContain("✖");
    expect(second.stderr).toMatch(
      new RegExp(`rank ${rank} \\(${where}, \\S+\\) failed; the report is in the output of node 0`),
    );
  });

  it("has the stack of an error on another node, once", async () => {
    const node = job();
    const all = await outcomes([0, 1].map((rank) => node(rank, ["-N", "2", "-n", "2"], runScript("throws", "2"))));
    expect(codes(all)).toEqual([1, 1]);
    expect(all[0]?.stderr).toMatch(/✖ rank 2 \(node 1: .*: TypeError: bad loss\n {4}at .*node\.mjs:\d+:\d+/);
    expect((all[0]?.stderr ?? "") + (all[1]?.stderr ?? "")).toMatch(
      /^(?:(?!bad loss)[^])*bad loss(?:(?!bad loss)[^])*$/,
    );
  });

  it("restarts all, under one attempt number, until restarts are used up", async () => {
    const node = job();
    const options = ["-N", "2", "-n", "1", "--max-restarts", "1", "--restart-backoff", "1ms", "--min-uptime", "0"];
    const good = await outcomes([0, 1].map((rank) => node(rank, options, runScript("exits", "1", "0"))));
    expect(codes(good)).toEqual([0, 0]);
    for (const { stdout } of good) expect(stdout).toContain("attempt 1: ");
    const both = await outcomes([0, 1].map((rank) => node(rank, options, runScript("exits", "1", "0,1"))));
    expect(codes(both)).toEqual([42, 42]);
    expect(both[0]?.stderr.match(/✖ rank 1/g)).toHaveLength(2);
  });

  it.each([0, 1])("SIGTERM to node %i ends all as cancelled", async (signalled) => {
    const node = job();
    const nodes = [0, 1].map((rank) => node(rank, ["-N", "2"], runScript("waits")));
    for (const one of nodes) await one.waitForOutput("waits");
    nodes[signalled]?.child.kill("SIGTERM");
    const all = await outcomes(nodes);
    expect(codes(all)).toEqual([143, 143]);
    expect(all[1 - signalled]?.stderr).toContain(`SIGTERM`);
  });

  it("a timeout on one node is one on all", async () => {
    const node = job();
    const all = await outcomes(
      [0, 1].map((rank) => node(rank, ["-N", "2", ...(rank === 1 ? ["--timeout", "1s"] : [])], runScript("waits"))),
    );
    expect(codes(all)).toEqual([124, 124]);
  });
});

/** The guard of a killed launcher ends its processes, and removes its secret. */
async function expectNoProcesses(): Promise<void> {
  await until(
    () =>
      livingProcesses().length === 0 && readdirSync(temporaryDir()).every((name) => !name.startsWith("mosaic-run-")),
    () => "processes or private directories are left",
  );
}

describe("a node is lost", { repeats }, () => {
  const started = async (count: number, options: readonly string[] = []): Promise<RunningProcess[]> => {
    const node = job();
    const nodes = Array.from({ length: count }, (_, rank) =>
      node(rank, ["-N", String(count), ...options], runScript("waits")),
    );
    for (const one of nodes) await one.waitForOutput("waits");
    return nodes;
  };

  it("its launcher is killed: all end with 75, and none of its processes is left", async () => {
    const nodes = await started(3);
    const began = performance.now();
    process.kill(nodes[1]?.pid ?? 0, "SIGKILL");
    const [first, , third] = await outcomes(nodes);
    expect(performance.now() - began).toBeLessThan(3000);
    expect(codes([first, third] as ProcessOutcome[])).toEqual([75, 75]);
    expect(first?.stderr).toMatch(/✖ node 1 \(\S+\) was lost \d+\.\d s into attempt 0: connection closed/);
    await expectNoProcesses();
  });

  it("node 0 is killed: the others end with 75", async () => {
    const nodes = await started(2);
    process.kill(nodes[0]?.pid ?? 0, "SIGKILL");
    const [, second] = await outcomes(nodes);
    expect(second?.code).toBe(75);
    expect(second?.stderr).toMatch(/✖ node 0 \(127\.0\.0\.9:\d+\) was lost/);
    await expectNoProcesses();
  });

  it("a launcher that is stopped is lost after 3 s, and ends when it goes on", async () => {
    const nodes = await started(2);
    const began = performance.now();
    process.kill(nodes[1]?.pid ?? 0, "SIGSTOP");
    const first = await nodes[0]?.outcome;
    expect(first?.code).toBe(75);
    expect(first?.stderr).toContain("was lost");
    expect(first?.stderr).toContain("no heartbeat for 2.5 s");
    expect(performance.now() - began).toBeLessThan(4500);
    process.kill(nodes[1]?.pid ?? 0, "SIGCONT");
    expect((await nodes[1]?.outcome)?.code).toBe(75);
  });

  it("and comes back within the restarts: the job goes on with all", async () => {
    const node = job();
    const options = ["-N", "2", "--max-restarts", "2", "--restart-backoff", "1ms"];
    const first = node(0, options, runScript("waits"));
    const second = node(1, options, runScript("waits"));
    for (const one of [first, second]) await one.waitForOutput("waits");
    process.kill(second.pid, "SIGKILL");
    await second.outcome;
    await first.waitForOutput("was lost");
    const again = node(1, options, runScript("waits"));
    expect(codes(await outcomes([first, again]))).toEqual([0, 0]);
    expect(again.output()).toContain("attempt 1: 1 0 2 1 1 2");
  });

  it("with MIN:MAX nodes the job goes on with those that are left, and takes others in at a restart", async () => {
    const node = job();
    const options = ["-N", "2:3", "--last-call", "1500ms", "--max-restarts", "2", "--restart-backoff", "1ms"];
    const nodes = [0, 1, 2].map((rank) => node(rank, options, runScript("waits", "-1", "0,1")));
    for (const one of nodes) await one.waitForOutput("waits");
    process.kill(nodes[1]?.pid ?? 0, "SIGKILL");
    await nodes[0]?.waitForOutput("attempt 1: 0 0 2 1 0 2");
    await nodes[2]?.waitForOutput("attempt 1: 1 0 2 1 1 2");
    const joining = node(1, options, runScript("waits", "-1", "0,1"));
    const ranks = listChildren(nodes[2]?.pid ?? 0).filter((pid) => readCommand(pid).includes("node.mjs"));
    await until(
      () => ranks.length === 1 && ranks.every(isAlive),
      () => "the rank of node 2 is not there",
    );
    for (const pid of ranks) process.kill(pid, "SIGKILL");
    const [first, third, joined] = await outcomes([nodes[0], nodes[2], joining] as RunningProcess[]);
    expect(codes([first, third, joined] as ProcessOutcome[])).toEqual([0, 0, 0]);
    expect(joined?.stdout).toContain("attempt 2: 1 0 3 1 1 3");
    expect(third?.stdout).toContain("attempt 2: 2 0 3 1 2 3");
  });
});

it("two nodes that share a log directory log into one", async () => {
  const node = job();
  await outcomes([0, 1].map((rank) => node(rank, ["-N", "2", "--log-dir", "logs"], runScript())));
  const [run = "", ...rest] = readdirSync(join(testDir(), "logs"));
  expect(rest).toEqual([]);
  for (const rank of [0, 1])
    expect(existsSync(join(testDir(), "logs", run, "attempt_0", String(rank), "stdout.log"))).toBe(true);
});
