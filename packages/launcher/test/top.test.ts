import { once } from "node:events";
import { mkdirSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { Agent } from "../src/agent/agent.ts";
import { encode, MAGIC, PROTOCOL_VERSION, type RankMetrics, type RankPosition, ROLES } from "../src/agent/frames.ts";
import { findJob } from "../src/top/find-job.ts";
import { Observer } from "../src/top/observer.ts";
import { parseTopSettings } from "../src/top/options.ts";
import { formatPrometheusMetrics } from "../src/top/prometheus.ts";
import { indexByRank, compareSamples, findSlowestRank, type WorldSample } from "../src/top/sample.ts";
import { formatTable } from "../src/top/table.ts";
import { runNode, temporaryDir, testDir } from "./harness.ts";

const seconds = (s: number): bigint => BigInt(Math.round(s * 1e9));
const zeroCounters = { time: 0n, steps: 0n, step: 0n, sinceStep: 0n, waiting: 0n };
const zeroBytes = { bytesSent: 0n, bytesReceived: 0n, reserved: 0n, peak: 0n, resident: 0n };

function createPosition(rank: number, metrics: Partial<RankMetrics> | undefined, activity = 2): RankPosition {
  const positionFields = {
    group: 1n,
    sequence: 7n,
    index: 7n,
    operation: "allReduce #7 (world)",
    description: "",
    last: "",
  };
  const rankMetrics = metrics === undefined ? [] : [{ ...zeroCounters, ...zeroBytes, ...metrics }];
  return { ranks: [[rank, 1]], activity, ...positionFields, metrics: rankMetrics };
}

/** Creates a sample of three ranks over one second. Rank 1 waits least, and rank 2 has exited. */
function createSample(): WorldSample {
  const members = [0, 0, 0].map((host, i) => ({ host, pid: 100 + i }));
  const world = { number: 0, name: "job/local", attempt: 0, size: 3, hosts: ["n0"], members };
  const createMetrics = (time: number, steps: number, sinceStep: number, waiting: number): Partial<RankMetrics> => ({
    ...{ time: seconds(time), steps: BigInt(steps), step: seconds(0.3), sinceStep: seconds(sinceStep) },
    ...{ waiting: seconds(waiting), bytesSent: BigInt(steps) * 1000n, resident: 2_000_000n },
  });
  const previousSample = indexByRank([
    createPosition(0, createMetrics(10, 5, 0.1, 1)),
    createPosition(1, createMetrics(10, 5, 0.1, 0)),
    createPosition(2, createMetrics(10, 5, 0, 1)),
  ]);
  const currentSample = indexByRank([
    createPosition(0, createMetrics(11, 7, 0.2, 1.9)),
    createPosition(1, createMetrics(11, 7, 0.2, 0.05)),
    createPosition(2, undefined, 3),
  ]);
  return compareSamples(world, previousSample, currentSample);
}

describe("two samples", () => {
  it("yield rates and the mean step time of the interval", () => {
    const { ranks, slowestRank } = createSample();
    expect(slowestRank).toBe(1);
    expect(ranks[0]).toMatchObject({
      rank: 0,
      host: "n0",
      pid: 100,
      activity: "running",
      steps: 7,
      residentBytes: 2e6,
    });
    // The last marks of the samples are at 9.9 and 10.8 s.
    expect(ranks[0]?.stepMs).toBeCloseTo(450, 6);
    expect(ranks[0]?.waitingShare).toBeCloseTo(0.9, 6);
    expect(ranks[0]?.sentBytesPerSecond).toBeCloseTo(2000, 6);
    expect(ranks[2]).toMatchObject({ activity: "exited", steps: null, waitingShare: null });
  });

  it("have null for values that are not available yet", () => {
    const member = { host: 0, pid: 100 };
    const world = {
      number: 0,
      name: "job/local",
      attempt: 0,
      size: 3,
      hosts: ["n0"],
      members: [member, member, member],
    };
    const marked = { steps: 1n, step: 0n, sinceStep: seconds(2), reserved: 5n, peak: 6n, resident: 7n };
    const sample = indexByRank([createPosition(0, { resident: 7n }), createPosition(1, marked)]);
    const { ranks, slowestRank } = compareSamples(world, undefined, sample);
    expect(slowestRank).toBeNull();
    const unknownRates = { waitingShare: null, sentBytesPerSecond: null, receivedBytesPerSecond: null };
    const unknownSteps = { stepMs: null, sinceStepMs: null, deviceBytes: null, devicePeakBytes: null };
    expect(ranks[0]).toMatchObject({ steps: 0, residentBytes: 7, ...unknownSteps, ...unknownRates });
    // The duration of a step is known from the second mark on.
    const memory = { deviceBytes: 5, devicePeakBytes: 6, residentBytes: 7 };
    expect(ranks[1]).toMatchObject({ steps: 1, stepMs: null, sinceStepMs: 2000, ...memory, ...unknownRates });
    // The agent reported no position of rank 2.
    const unknown = { activity: "unknown", steps: null, residentBytes: null };
    expect(ranks[2]).toMatchObject({ ...unknown, ...unknownSteps, ...unknownRates });
    // In an interval that contains the first mark, the mean step time is not known.
    const next = { ...marked, time: seconds(1), steps: 2n, step: seconds(0.25) };
    const after = compareSamples(world, sample, indexByRank([createPosition(0, next)]));
    expect(after.ranks[0]?.stepMs).toBe(250);
  });

  it("yield no slowest rank if all ranks wait equally or only one has a share", () => {
    const findSlowest = (...shares: (number | null)[]): number | null =>
      findSlowestRank(shares.map((waitingShare, rank) => ({ rank, waitingShare })));
    expect(findSlowest(0.5, 0.45, 0.5)).toBeNull();
    expect(findSlowest(0.5, 0.3, 0.5)).toBe(1);
    expect(findSlowest(0.2)).toBeNull();
    expect(findSlowest(null, null)).toBeNull();
  });
});

describe("the table", () => {
  const style = { color: false, columns: undefined, rows: undefined };

  it("has a row for each rank, and names the slowest rank below", () => {
    expect(formatTable(createSample(), { ...style, columns: 100 })).toEqual([
      "job/local, attempt 0, 3 ranks",
      "RANK  STEP  STEP TIME  WAITING   SENT/s  RECEIVED/s   MEMORY  DEVICE  POSITION",
      "   0     7     450 ms     90 %  2.00 kB         0 B  2.00 MB     0 B  in allReduce #7 (world)",
      "   1     7     450 ms      5 %  2.00 kB         0 B  2.00 MB     0 B  in allReduce #7 (world)",
      "   2     –          –        –        –           –        –       –  exited",
      "slowest: rank 1; it waits 5 % of the time, the others 90 %",
    ]);
  });

  it("shows times and bytes with three digits, without an exponent", () => {
    const formatCells = (stepMs: number, residentBytes: number): readonly string[] => {
      const [rank, ...others] = createSample().ranks;
      const ranks = [{ ...rank!, stepMs, residentBytes }, ...others];
      return formatTable({ ...createSample(), ranks }, { ...style, columns: 100 })[2]!
        .trim()
        .split(/ {2,}/);
    };
    const cases = [
      [0.5, 999, "0.500 ms", "999 B"],
      [99.96, 999.6, "100 ms", "1.00 kB"],
      [999.4, 999_499, "999 ms", "999 kB"],
      [999.6, 999_500, "1.00 s", "1.00 MB"],
      [99_960, 99_960, "100 s", "100 kB"],
      [1_234_500, 5e15, "1235 s", "5000 TB"],
    ] as const;
    for (const [stepMs, bytes, timeText, bytesText] of cases) {
      const cells = formatCells(stepMs, bytes);
      expect([cells[2], cells[6]], `${stepMs} ms, ${bytes} bytes`).toEqual([timeText, bytesText]);
    }
  });

  it("fits small terminals, and colors ranks by their state if colors are enabled", () => {
    for (const columns of [20, 60, 80, 120])
      for (const line of formatTable(createSample(), { ...style, columns }))
        expect(line.length).toBeLessThanOrEqual(columns);
    const shortTable = formatTable(createSample(), { ...style, rows: 5 });
    expect(shortTable).toHaveLength(4);
    expect(shortTable[2]).toMatch(/^ +1 /);
    expect(shortTable[3]).toContain("2 more ranks");
    const { ranks, ...sample } = createSample();
    const failedRank = { ...ranks[2]!, rank: 3, activity: "failed" as const };
    const rows = formatTable({ ...sample, ranks: [...ranks, failedRank] }, { ...style, color: true }).slice(2, 6);
    const [yellow, red, grey] = [33, 31, 90].map((code) => `\u001b[${code}m`);
    expect(rows.map((row) => row.slice(0, 5))).toEqual(["   0 ", yellow, grey, red]);
    expect(rows.map((row) => row.endsWith("\u001b[0m"))).toEqual([false, true, true, true]);
  });
});

describe("the metrics for Prometheus", () => {
  it("are in seconds and bytes, without the values that are not known", () => {
    const lines = formatPrometheusMetrics('the "job"', [createSample()]).trimEnd().split("\n");
    const valuesOf = (name: string): Record<string, number> => {
      const pattern = new RegExp(`^${name}\\{job_id="the \\\\"job\\\\"",world="job/local",attempt="0"(.*)\\} (\\S+)$`);
      const samples = lines.flatMap((line) => {
        const [, labels, value] = pattern.exec(line) ?? [];
        return labels === undefined ? [] : [[labels, Number(value)] as const];
      });
      return Object.fromEntries(samples);
    };
    const labelsOf = (rank: number): string => `,rank="${rank}",host="n0"`;
    const [first, second, third] = [0, 1, 2].map(labelsOf) as [string, string, string];
    expect(valuesOf("mosaic_rank_steps")).toEqual({ [first]: 7, [second]: 7 });
    expect(valuesOf("mosaic_rank_step_seconds")[first]).toBeCloseTo(0.45, 9);
    expect(valuesOf("mosaic_rank_since_step_seconds")).toEqual({ [first]: 0.2, [second]: 0.2 });
    expect(valuesOf("mosaic_rank_waiting_ratio")[second]).toBeCloseTo(0.05, 9);
    expect(valuesOf("mosaic_rank_sent_bytes_per_second")).toEqual({ [first]: 2000, [second]: 2000 });
    expect(valuesOf("mosaic_rank_received_bytes_per_second")).toEqual({ [first]: 0, [second]: 0 });
    expect(valuesOf("mosaic_rank_resident_bytes")).toEqual({ [first]: 2e6, [second]: 2e6 });
    expect(valuesOf("mosaic_rank_up")).toEqual({ [first]: 1, [second]: 1, [third]: 0 });
    expect(valuesOf("mosaic_slowest_rank")).toEqual({ "": 1 });
    const types = lines.flatMap((line) => /^# TYPE (\S+) gauge$/.exec(line)?.[1] ?? []);
    expect(types).toHaveLength(11);
    expect(new Set(types).size).toBe(types.length);
  });
});

describe("the job to watch", () => {
  const jobs = ["train-12ab", "train-98cd"].map((id) => ({ id, socket: `/run/${id}/agent`, tokenFile: undefined }));

  it("is found by its ID, a prefix of the ID or its log directory", () => {
    mkdirSync(join(testDir(), "logs", "train-98cd"), { recursive: true });
    for (const jobText of ["train-98cd", "train-9", join(testDir(), "logs"), join(testDir(), "logs", "train-98cd")])
      expect(findJob(jobText, jobs)).toBe(jobs[1]);
    expect(findJob(undefined, jobs.slice(1))).toBe(jobs[1]);
  });

  it("is rejected with a list of running jobs if it is unknown or ambiguous", () => {
    expect(() => findJob("x", jobs)).toThrow(
      'expected a running job, received "x"; running jobs: train-12ab, train-98cd',
    );
    expect(() => findJob("x".repeat(300), jobs)).toThrow(/expected a running job, received "x+"; running jobs:/);
    expect(() => findJob("train", jobs)).toThrow("running jobs: train-12ab, train-98cd");
    expect(() => findJob(undefined, jobs)).toThrow("expected a run id, received none; running jobs: train-12ab");
    expect(() => findJob(undefined, [])).toThrow("no mosaic-run job of this user is running on this host");
  });
});

describe("the mosaic-top command", () => {
  it("parses options before and after the job, and rejects invalid ones", () => {
    const expected = { job: "ab", intervalMs: 500, once: true, json: true, prometheusPort: 9400, color: "auto" };
    const argv = ["--once", "ab", "--interval=500ms", "--json", "--prometheus", "9400"];
    expect(parseTopSettings(argv, "1.0.0")).toEqual(expected);
    for (const [invalidArg, message] of [
      [["--intervall", "1s"], "unknown option --intervall; did you mean --interval? (see mosaic-top --help)"],
      [["--interval", "50ms"], '--interval: expected a time of at least 100ms, received "50ms"'],
      [["--prometheus", "70000"], '--prometheus: expected an integer from 0 to 65535, received "70000"'],
      [["a", "b"], 'expected one job, received "a" and "b"'],
    ] as const)
      expect(() => parseTopSettings(invalidArg, "1.0.0")).toThrow(message);
  });

  it("prints its help, and exits with 2 for a job that is not running", async () => {
    const topCli = join(import.meta.dirname, "../dist/top.js");
    expect(await runNode([topCli, "--help"]).outcome).toMatchObject({
      code: 0,
      stdout: expect.stringContaining("Usage"),
    });
    const failedOutcome = await runNode([topCli, "none-such"]).outcome;
    expect(failedOutcome).toMatchObject({
      code: 2,
      stdout: "",
      stderr: expect.stringMatching(/^mosaic-top: expected a running/),
    });
  });
});

describe("an agent", () => {
  it("reports its worlds to an observer, does not count it as a connection, and rejects its join frames", async () => {
    const path = join(temporaryDir(), "agent");
    await using agent = await Agent.listen({ path, host: "n0" });
    const hello = {
      magic: MAGIC,
      version: PROTOCOL_VERSION,
      secret: "",
      role: ROLES.rank,
      agent: 0,
      host: "",
      address: "",
    };
    const joinFrame = { world: 0, name: "job", attempt: 0, size: 1, timeoutMs: 9000, remainingMs: 9000, hosts: [] };
    const rank = connect({ path });
    rank.write(encode({ kind: "hello", ...hello }));
    rank.write(encode({ kind: "join", ...joinFrame, members: [{ rank: 0, pid: 71, host: 0 }] }));
    await once(rank, "data");
    using observer = await Observer.connect(path, "");
    while (observer.worlds.length === 0) await new Promise((resolve) => setImmediate(resolve));
    expect(observer.worlds).toMatchObject([{ name: "job", size: 1, hosts: ["n0"], members: [{ host: 0, pid: 71 }] }]);
    expect(agent.connections).toBe(1);
    // The rank never replies. The request resolves when its world ends.
    const positions = observer.positions(observer.worlds[0]!);
    rank.destroy();
    expect(await positions).toEqual([]);
    while (observer.worlds.length > 0) await new Promise((resolve) => setImmediate(resolve));
    const intruderSocket = connect({ path });
    intruderSocket.write(encode({ kind: "hello", ...hello, role: ROLES.observer }));
    intruderSocket.write(encode({ kind: "join", ...joinFrame, members: [{ rank: 0, pid: 72, host: 0 }] }));
    await once(intruderSocket.resume(), "close");
  });

  it("rejects an observer with a different secret", async () => {
    const path = join(temporaryDir(), "agent");
    await using agent = await Agent.listen({ path, host: "n0", secret: "right" });
    using observer = await Observer.connect(path, "wrong");
    await observer.ended;
    expect(observer.refusal).toMatch(/shared secret mismatch with the agent on n0/);
    expect(agent.hasConnections).toBe(false);
  });
});
