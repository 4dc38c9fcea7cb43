import { spawnSync } from "node:child_process";
import { appendFileSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import * as mosaic from "@mosaic/attention";
import { attentionOracle, attentionOracleBackward, normals } from "@mosaic/conformance";
import { afterAll, describe, expect, it } from "vitest";
import type { BenchmarkContext, Case, Implementation, Errors, Result } from "../gpu/bench.ts";
import { timeContenders, createGateCase, isCorrect, selectCorrectContenders } from "../gpu/cases.ts";
import { lowerBound } from "../gpu/report.ts";
import { timeSteps, MosaicImplementation } from "../gpu/contenders.ts";
import { BaselineProcess, BaselineUnsupportedError } from "../src/peers.ts";
import { countBytes, countExponentials, countFlops, createProblem } from "../gpu/problem.ts";
import { Results, runCases, WorkerPool } from "../gpu/run.ts";
import { relativeError, computeGradientRow, computeAttentionRow } from "../gpu/check-results.ts";

const directory = mkdtempSync(join(tmpdir(), "mosaic-bench-"));
afterAll(() => rmSync(directory, { recursive: true }));

const file = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
const fakePeer = [process.execPath, file("fake-peer.mjs")];
const shape = { direction: "forward", dtype: "bf16", mask: "full", d: 64, n: 256 } as const;
const problem = createProblem(shape, { tokens: 512, hidden: 128 });

describe("operation counts and lower bounds", () => {
  it("counts FLOPs, bytes and exponentials of a problem, and half the FLOPs with a causal mask", () => {
    expect(problem).toMatchObject({ batch: 2, numHeads: 2 });
    expect(countFlops(problem)).toBe(4 * 2 * 2 * 256 ** 2 * 64);
    expect(countFlops({ ...problem, direction: "backward", mask: "causal" })).toBe(5 * 2 * 2 * 256 ** 2 * 64);
    expect(countBytes(problem)).toBe(4 * 512 * 128 * 2 + 4 * 512 * 2);
    expect(countBytes({ ...problem, direction: "backward" })).toBe(8 * 512 * 128 * 2 + 4 * 512 * 2);
    expect(countExponentials({ ...problem, mask: "causal" })).toBe((2 * 2 * 256 ** 2) / 2);
    expect(() => createProblem({ ...shape, n: 300 }, { tokens: 512, hidden: 128 })).toThrow("whole sequences of 300");
  });

  it("takes the longest of the product, memory and exponential times as the lower bound", () => {
    const rates = {
      flopsPerSecond: countFlops(problem),
      bytesPerSecond: countBytes(problem) / 3,
      exponentialsPerSecond: countExponentials(problem) / 2,
    };
    expect(lowerBound(problem, rates)).toEqual({
      productSeconds: 1,
      memorySeconds: 3,
      exponentialSeconds: 2,
      seconds: 3,
    });
  });

  it("prints the lower bounds that gpu/README.md states", () => {
    const { stdout } = bench("--floors");
    const page = readFileSync(file("../gpu/README.md"), "utf8");
    const rows = stdout.split("\n").filter((line) => /^\| (1024|16384|65536) /.test(line));
    expect(rows).toHaveLength(12);
    for (const row of rows) expect(page).toContain(row);
  });
});

describe("the baseline process", () => {
  it("returns a result per request, rejects unsupported backends, and skips the output of libraries", async () => {
    using peer = new BaselineProcess(fakePeer);
    expect(await peer.request({ op: "sample", backend: "flash", count: 2 })).toEqual({ seconds: [1e-3, 1e-3] });
    await expect(peer.request({ op: "prepare", backend: "cudnn" })).rejects.toThrow(BaselineUnsupportedError);
    expect(await peer.request({ op: "release" })).toEqual({});
  });

  it("rejects all requests if it exits, cannot be started or exceeds its time limit", async () => {
    using dying = new BaselineProcess([...fakePeer, "dies"]);
    await expect(dying.request({ op: "hello" })).rejects.toThrow("exited with code 3");
    await expect(dying.request({ op: "hello" })).rejects.toThrow("exited with code 3");
    using absent = new BaselineProcess(["no-such-python"]);
    await expect(absent.request({ op: "hello" })).rejects.toThrow("no-such-python");
    using hanging = new BaselineProcess([...fakePeer, "hangs"], 0.05);
    await expect(hanging.request({ op: "hello" })).rejects.toThrow("SIGKILL");
  });
});

/** Returns a contender with fixed times. */
function contender(name: string, seconds: number, log: string[], refuses = false): Implementation {
  return {
    name,
    check: async () => ({ out: 1e-3, dq: 1e-3, dk: 1e-3, dv: name === "wrong" ? Number.NaN : 1e-3 }),
    async prepare() {
      if (refuses) throw new BaselineUnsupportedError("not here");
      return seconds;
    },
    async sample(count) {
      log.push(name);
      return {
        seconds: Array.from({ length: count }, (_, i) => seconds * (1 + i)),
        secondsByKernel: { attend: seconds },
      };
    },
    async release() {
      log.push(`${name} released`);
    },
  };
}

describe("timeContenders", () => {
  it("times contenders in turns, omits unsupported ones, and reports medians", async () => {
    const log: string[] = [];
    const contenders = [contender("a", 0.01, log), contender("b", 0.001, log), contender("c", 1, log, true)];
    const { times, refused } = await timeContenders(contenders, problem, {
      rounds: 2,
      secondsPerRound: 0.03,
      maxRuns: 10,
      limitSeconds: 9,
    });
    expect(log).toEqual(["a", "b", "a", "b", "a released", "b released", "c released"]);
    expect(times["a"]).toEqual({ median: 0.02, low: 0.01, high: 0.03, runs: 6, kernels: { attend: 0.01 } });
    expect(times["b"]!.runs).toBe(20);
    expect(refused).toEqual({ c: "not here" });
  });

  it("stops after three rounds if the time limit is exceeded", async () => {
    const log: string[] = [];
    await timeContenders([contender("a", 1, log)], problem, {
      rounds: 9,
      secondsPerRound: 0,
      maxRuns: 1,
      limitSeconds: -1,
    });
    expect(log.filter((name) => name === "a")).toHaveLength(3);
  });
});

function benchOf(contenders: readonly Implementation[]): BenchmarkContext {
  return {
    sizes: { tokens: 512, hidden: 128 },
    effort: { rounds: 1, secondsPerRound: 0, maxRuns: 1, limitSeconds: 0 },
    device: "cpu",
    implementations: async () => contenders,
    baseline: () => undefined,
    close: async () => {},
  };
}

describe("the correctness gate", () => {
  it("excludes contenders whose results are wrong or NaN", async () => {
    const bench = benchOf([contender("right", 1, []), contender("wrong", 1, [])]);
    expect(await createGateCase(shape).run(bench)).toMatchObject({ case: "gate.bf16.full.d64", wrong: ["wrong"] });
    expect(await selectCorrectContenders(bench, shape, new Map())).toEqual(new Set(["right"]));
    const kept = new Map<string, Result>([["gate.bf16.full.d64", { case: "x", errors: { kept: {} }, wrong: [] }]]);
    expect(await selectCorrectContenders(bench, shape, kept)).toEqual(new Set(["kept"]));
    expect(isCorrect({ out: 1e-3, dq: 1e-3, dk: 3e-3, dv: 1e-3 }, { dtype: "fp16" })).toBe(false);
  });
});

describe("MosaicImplementation", () => {
  const small = { ...problem, n: 96, batch: 1, mask: "causal" } as const;

  it("matches the reference, and returns the time of each run and of its kernels", async () => {
    await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
    const ours = new MosaicImplementation("cpu", ctx);
    const errors: Errors = await ours.check({ ...small, direction: "backward" });
    expect(isCorrect(errors, small)).toBe(true);
    for (const direction of ["forward", "backward"] as const) {
      expect(await ours.prepare({ ...small, direction })).toBeGreaterThan(0);
      const { seconds, secondsByKernel } = await ours.sample(3);
      expect(seconds).toHaveLength(3);
      expect(Math.min(...seconds)).toBeGreaterThan(0);
      const names = Object.keys(secondsByKernel!);
      expect(names.filter((name) => name.startsWith("attend"))).toHaveLength(1);
      expect(names.includes("rowDot")).toBe(direction === "backward");
      expect(Object.values(secondsByKernel!).reduce((a, b) => a + b)).toBeLessThan(1.01 * Math.max(...seconds));
    }
    await ours.release();
    await ctx.device.stream.synchronize();
    expect(ctx.device.memory().allocated).toBe(0);
  });

  it("rejects wrong rows of the problem that is timed", async () => {
    await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
    const { kernels } = ctx.device;
    const attend = kernels.attend.bind(kernels);
    kernels.attend = (state, q, keys, tile) => attend(state, q, keys, { ...tile, scale: tile.scale * 1.5 });
    const ours = new MosaicImplementation("cpu", ctx);
    await expect(ours.prepare({ ...small, mask: "full" })).rejects.toThrow(/out of row 0: relative error/);
    await ours.release();
  });

  it("times the kernels of each step, and rejects steps that draw random numbers", async () => {
    await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
    const laps = await timeSteps(ctx.device, [() => mosaic.zeros(ctx, [64]).dispose(), () => {}]);
    expect(laps.map(({ secondsByKernel }) => Object.keys(secondsByKernel))).toEqual([["fill"], []]);
    await expect(timeSteps(ctx.device, [() => mosaic.rand(ctx, [64]).dispose()])).rejects.toThrow("received 3");
  });
});

describe("computeAttentionRow and computeGradientRow", () => {
  it("match the attention oracle", () => {
    const sizes = { batch: 1, numHeads: 1, numKvHeads: 1, queries: 5, keys: 5, headDim: 4, scale: 0.5 };
    const [q, k, v, dOut] = [1, 2, 3, 4].map((seed) => normals(20, seed, "float32")) as [
      Float64Array,
      Float64Array,
      Float64Array,
      Float64Array,
    ];
    const whole = { ...sizes, maskMod: () => true, q, k, v };
    const scores = [0, 1, 2, 3, 4].map(
      (key) => 0.5 * [0, 1, 2, 3].reduce((s, c) => s + q[12 + c]! * k[4 * key + c]!, 0),
    );
    const f32 = (x: Float64Array, from = 0, to?: number): Float32Array => Float32Array.from(x.subarray(from, to));
    const row = { scores, k: f32(k), v: f32(v), dOut: f32(dOut, 12, 16), d: 4 };
    expect(relativeError(computeAttentionRow(row), attentionOracle(whole).out.subarray(12, 16))).toBeLessThan(1e-12);
    expect(
      relativeError(computeGradientRow(row), attentionOracleBackward(whole, dOut).dq.subarray(12, 16)),
    ).toBeLessThan(1e-12);
    expect(relativeError([Number.NaN], [1])).toBeNaN();
  });
});

describe("runCases", () => {
  const caseOf = (name: string, result: object | Error): Case => ({
    name,
    part: "gate",
    async run() {
      if (result instanceof Error) throw result;
      return { case: name, ...result };
    },
  });
  const inPlace = (one: Case): Promise<Result> => one.run(benchOf([]));

  it("continues after failures, and resumes from stored results with an incomplete last line", async () => {
    const path = join(directory, "resumed.jsonl");
    const failing = [caseOf("a", { x: 1.23456789 }), caseOf("b", new Error("broke")), caseOf("c", { wrong: ["d"] })];
    const first = await runCases(failing, inPlace, new Results(path), { share: 1, again: false });
    expect(first).toEqual({ failures: { b: "broke", c: "wrong results of d" }, remainingCases: [] });
    appendFileSync(path, '{"case":"b","half');
    const results = new Results(path);
    expect([...results.byCase.keys()]).toEqual(["a", "c"]);
    expect(results.byCase.get("a")).toEqual({ case: "a", x: 1.2346 });
    const second = await runCases([caseOf("a", new Error("again")), caseOf("b", {})], inPlace, results, {
      share: 1,
      again: false,
    });
    expect(second.failures).toEqual({});
    expect([...new Results(path).byCase.keys()]).toEqual(["a", "c", "b"]);
  });

  it("returns the cases that do not fit its share of the time", async () => {
    const results = new Results(join(directory, "left.jsonl"));
    const { remainingCases } = await runCases([caseOf("a", {}), caseOf("b", {})], inPlace, results, {
      share: 0,
      again: false,
    });
    expect(remainingCases).toEqual(["a", "b"]);
  });
});

describe("WorkerPool", () => {
  it("replaces a worker that breaks, exits or times out, and keeps one that reports a failed case", async () => {
    using workers = new WorkerPool([], file("fake-worker.mjs"));
    const processOf = async (name: string): Promise<unknown> => (await workers.run(name, 20))["process"];
    const first = await processOf("a");
    await expect(workers.run("fails", 20)).rejects.toThrow("wrong rows");
    expect(await processOf("b")).toBe(first);
    const seen = [first];
    for (const [name, why, limit] of [
      ["breaks", "an illegal address", 20],
      ["dies", "its process exited with code 7", 20],
      ["hangs", "timed out after 0.05 s", 0.05],
    ] as const) {
      await expect(workers.run(name, limit)).rejects.toThrow(why);
      seen.push(await processOf("c"));
    }
    expect(new Set(seen).size).toBe(4);
  });
});

const emulated = {
  MOSAIC_CUDA_LIBRARY: file("../../packages/kernels-cuda/build-emulated/libcuda_emulated.so"),
  MOSAIC_NCCL_LIBRARY: file("../../packages/collectives-nccl/build-emulated/libnccl_emulated.so"),
  MOSAIC_EMULATED_CAPABILITY: "90",
};

function bench(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const main = file("../dist/gpu.js");
  return spawnSync(process.execPath, [main, ...args], { encoding: "utf8", env: { ...process.env, ...emulated } });
}

describe("the GPU benchmark command", () => {
  const out = join(directory, "out");
  const tiny = ["--tokens", "128", "--hidden", "256", "--lengths", "128", "--once", "--out", out];
  const peer = ["--peer", fakePeer.join(" ")];

  it("lists all cases, and rejects unknown cases and options and a missing baseline", () => {
    const names = bench("--list").stdout.trim().split("\n");
    expect(new Set(names).size).toBe(names.length);
    for (const direction of ["forward", "backward"]) {
      for (const d of [64, 128]) expect(names).toContain(`attention.${direction}.bf16.causal.d${d}.n65536`);
      expect(names).toContain(`attention.${direction}.fp16.full.d128.n16384`);
      expect(names).toContain(`ring.4.${direction}.bf16.full.d128.n65536`);
    }
    expect(bench("--filter", "nothing")).toMatchObject({ status: 2, stderr: expect.stringContaining("--list") });
    expect(bench("--fast")).toMatchObject({ status: 2, stderr: expect.stringContaining("--quick") });
    expect(bench("--help").stdout).toContain("in turns");
    const noPeer = bench("--filter", "gate", "--out", join(directory, "none"), "--peer", "no-such-python");
    expect(noPeer).toMatchObject({ status: 2, stderr: expect.stringContaining("no-such-python") });
  });

  it("compares emulated kernels with a fake PyTorch process, and writes a page of results", () => {
    const some = "gate.bf16.causal.d64,attention.forward.bf16.causal.d64,attention.backward.bf16.causal.d64";
    // "efficient" fails the gate on purpose.
    expect(bench(...tiny, ...peer, "--filter", some)).toMatchObject({ status: 1 });
    const page = readFileSync(join(out, "gpu.md"), "utf8");
    expect(page).toContain("### Attention forward bf16 causal d64");
    expect(page).toContain("### Attention backward bf16 causal d64");
    expect(page).toContain("portable / best of PyTorch");
    expect(page).toContain("cudnn: no such backend here");
    expect(page).not.toContain("efficient TFLOP/s");
    const lines = readFileSync(join(out, "gpu.jsonl"), "utf8").trim().split("\n");
    const found = lines.map((line) => JSON.parse(line) as Result & { times: object });
    const forward = found.find((one) => one.case === "attention.forward.bf16.causal.d64.n128")!;
    expect(forward.times).toMatchObject({
      flash: { median: 1e-3 },
      portable: { kernels: { attend_bfloat16_64: expect.any(Number) } },
      hopper: { kernels: { attendHopper_bfloat16_64: expect.any(Number) } },
    });
    expect(Object.keys(forward.times)).not.toContain("cudnn");
  });

  it("skips cases that have results, and rejects results of a different machine", () => {
    const lines = (): number => readFileSync(join(out, "gpu.jsonl"), "utf8").trim().split("\n").length;
    const before = lines();
    expect(bench("--filter", "attention.forward.bf16.causal.d64", ...tiny, "--peer", "none").status).toBe(0);
    expect(lines()).toBe(before + 1);
    expect(bench("--device", "cpu", ...tiny, "--peer", "none")).toMatchObject({
      status: 2,
      stderr: expect.stringContaining("a different machine"),
    });
  });

  it.each(["cpu", "cuda"])("runs ring cases on ranks that share a device: %s", (device) => {
    const at = join(directory, `ring on ${device}`);
    const some = ["--device", device, "--filter", "ring.2.forward.bf16.causal", "--peer", "none"];
    expect(bench(...some, ...tiny, "--out", at).status).toBe(0);
    expect(readFileSync(join(at, "gpu.md"), "utf8")).toMatch(/ring\.2\.forward\.bf16\.causal\.d64\.n128 \| \d/);
  });
});
