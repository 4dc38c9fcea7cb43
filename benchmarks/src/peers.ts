import { type ChildProcessByStdio, spawn } from "node:child_process";
import { createInterface, type Interface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import * as mosaic from "@mosaic/attention";
import { type AttentionProblem, AttentionRun, countFlops, formatName } from "./attention-problem.ts";
import { type BenchmarkCase, median, waitUntilIdle, type ResultRow } from "./case.ts";

/** Script of the PyTorch baseline. */
export const sdpaScriptPath: string = fileURLToPath(new URL("../peers/sdpa.py", import.meta.url));

/** Script of the onnxruntime baseline. */
export const onnxScriptPath: string = fileURLToPath(new URL("../peers/onnx_runtime.py", import.meta.url));

/** The baseline refused a request, because it has no backend for the problem or not enough memory. */
export class BaselineUnsupportedError extends Error {}

/** A process that answers each line of JSON with one. It handles one request at a time. */
export class BaselineProcess implements Disposable {
  readonly #process: ChildProcessByStdio<Writable, Readable, null>;
  readonly #lines: Interface;
  readonly #name: string;
  readonly #timeout: number;
  #pendingRequest: { resolve(line: string): void; reject(error: Error): void } | undefined;
  #exitReason: string | undefined;

  /** Starts `command`. If a request takes longer than `timeoutSeconds`, the process is terminated. */
  constructor(command: readonly string[], timeoutSeconds = 60) {
    this.#name = command.join(" ");
    this.#timeout = timeoutSeconds;
    this.#process = spawn(command[0]!, command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
    this.#lines = createInterface({ input: this.#process.stdout });
    this.#lines.on("line", (line) => this.#receiveLine(line));
    this.#process.on("error", (error) => this.#reject(error.message));
    // The event is not "exit", after which output may still arrive.
    this.#process.on("close", (code, signal) => this.#reject(`exited with ${signal ?? `code ${code}`}`));
    this.#process.stdin.on("error", (error) => this.#reject(error.message));
  }

  get hasEnded(): boolean {
    return this.#exitReason !== undefined;
  }

  /** @throws BaselineUnsupportedError if the reply is an error; Error if the process has exited or takes too long. */
  async request<T>(message: Readonly<Record<string, unknown>>): Promise<T> {
    const line = await this.#exchangeLine(JSON.stringify(message));
    const response = JSON.parse(line) as T & { error?: string };
    if (response.error !== undefined) throw new BaselineUnsupportedError(response.error);
    return response;
  }

  #exchangeLine(message: string): Promise<string> {
    if (this.#exitReason !== undefined) return Promise.reject(this.#exitError());
    return new Promise((resolve, reject) => {
      const killTimer = setTimeout(() => this.#process.kill("SIGKILL"), this.#timeout * 1000);
      const createSettler = <T>(callback: (value: T) => void) => {
        return (value: T) => {
          clearTimeout(killTimer);
          this.#pendingRequest = undefined;
          callback(value);
        };
      };
      this.#pendingRequest = { resolve: createSettler(resolve), reject: createSettler(reject) };
      this.#process.stdin.write(`${message}\n`);
    });
  }

  #receiveLine(line: string): void {
    // Other lines are output of libraries.
    if (line.startsWith("{")) this.#pendingRequest?.resolve(line);
  }

  #reject(reason: string): void {
    this.#exitReason ??= reason;
    this.#pendingRequest?.reject(this.#exitError());
  }

  #exitError(): Error {
    return new Error(`peer process ${this.#name}: ${this.#exitReason}`);
  }

  [Symbol.dispose](): void {
    if (this.#exitReason === undefined) this.#process.stdin.end(`${JSON.stringify({ op: "quit" })}\n`);
  }
}

const HEADS = 8;

/** Timeout in seconds of one request. */
const TIMEOUT_SECONDS = 600;

const shapes = [512, 1024, 2048, 4096, 8192].flatMap((n) =>
  ([64, 128] as const).flatMap((d) => (["full", "causal"] as const).map((mask) => ({ mask, d, n }))),
);

/** The shape of attention over the features of each row of a table: many short sequences. */
const tabularProblem = { mask: "full", d: 24, n: 5, batch: 100_000, numHeads: 1 } as const;

/** Attention on every core, compared in turns with PyTorch's scaled_dot_product_attention on the same cores. */
export const baselineCases: readonly BenchmarkCase[] = (["forward", "backward"] as const).flatMap((direction) => [
  ...(["f32", "bf16"] as const).flatMap((dtype) =>
    shapes.map((shape) => createBaselineCase({ direction, dtype, numHeads: HEADS, ...shape })),
  ),
  createBaselineCase({ direction, dtype: "f32", ...tabularProblem }, ["flash", "math"]),
]);

/** Returns a case that compares with the fastest of PyTorch's backends. */
function createBaselineCase(problem: AttentionProblem, backends: readonly string[] = ["flash"]): BenchmarkCase {
  const name = `peer.${formatName(problem)}`;
  return {
    names: [name],
    async run({ repetitions, python }) {
      using baseline = new BaselineProcess([python!, sdpaScriptPath, "--device", "cpu"], TIMEOUT_SECONDS);
      for (const backend of backends) {
        await baseline.request({ op: "prepare", backend, problem: { batch: 1, ...problem } });
      }
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      using run = new AttentionRun(ctx, problem, mosaic.local());
      const timeOnce = async (): Promise<number> => {
        const { begin, end } = await run.runOnce();
        return end - begin;
      };
      const samplers = [timeOnce, ...backends.map((backend) => sampleBaseline(baseline, backend))] as const;
      const turns = await sampleInTurns(repetitions, await timeOnce(), samplers);
      const timings = (sampleKind: keyof Sample): PairedTimings => ({
        ownSeconds: turns.map(([ownSample]) => ownSample![sampleKind]),
        baselineSeconds: turns.map(([, ...baselineSamples]) =>
          Math.min(...baselineSamples.map((sample) => sample[sampleKind])),
        ),
      });
      const row = createBaselineRow(name, countFlops(problem), timings("warmSeconds"));
      const { vsPeer: coldSpeedRatio } = createBaselineRow(name, 1, timings("coldSeconds")).numbers;
      return [{ ...row, numbers: { ...row.numbers, coldVsPeer: coldSpeedRatio! } }];
    },
  };
}

/**
 * Seconds of one contender's turn: of its first run, before which its threads were asleep, and the median of the later
 * runs.
 */
export interface Sample {
  readonly coldSeconds: number;
  readonly warmSeconds: number;
}

/** Returns a function that runs a turn of the baseline, with one of its backends if it has several. */
export function sampleBaseline(baseline: BaselineProcess, backend?: string): (count: number) => Promise<Sample> {
  return async (count) => {
    const response = await baseline.request<{ first: number; seconds: number[] }>({ op: "sample", backend, count });
    return { coldSeconds: response.first, warmSeconds: median(response.seconds) };
  };
}

/** Total seconds of the warm runs of a turn. */
const TURN_SECONDS = 0.05;

/** Samples every contender in each turn. The first turn is not reported. `seconds` is the approximate time of a run. */
export async function sampleInTurns(
  repetitions: number,
  seconds: number,
  [timeOwnRun, ...baselineSamplers]: readonly [() => Promise<number>, ...((count: number) => Promise<Sample>)[]],
): Promise<Sample[][]> {
  const count = Math.max(1, Math.min(20, Math.round(TURN_SECONDS / seconds)));
  const sampleOwnRuns = async (): Promise<Sample> => {
    const coldSeconds = await timeOwnRun();
    const warmSeconds: number[] = [];
    for (let i = 0; i < count; i++) warmSeconds.push(await timeOwnRun());
    return { coldSeconds, warmSeconds: median(warmSeconds) };
  };
  const turns: Sample[][] = [];
  for (let turn = 0; turn <= repetitions; turn++) {
    const samples: Sample[] = [];
    for (const takeSample of [sampleOwnRuns, ...baselineSamplers]) {
      await waitUntilIdle();
      samples.push(await takeSample(count));
    }
    if (turn > 0) turns.push(samples);
  }
  return turns;
}

/** Seconds of each turn, for Mosaic and for the baseline. */
export interface PairedTimings {
  readonly ownSeconds: readonly number[];
  readonly baselineSeconds: readonly number[];
}

/**
 * Returns Mosaic's speed relative to the baseline: the median over neighboring turns, and the ratio of the fastest
 * turns.
 */
export function createBaselineRow(
  name: string,
  flops: number,
  { ownSeconds, baselineSeconds }: PairedTimings,
): ResultRow {
  const medianSpeedRatio = median(baselineSeconds.map((seconds, turn) => seconds / ownSeconds[turn]!));
  const bestSpeedRatio = Math.min(...baselineSeconds) / Math.min(...ownSeconds);
  const gflops = flops / Math.min(...ownSeconds) / 1e9;
  const baselineGflops = flops / Math.min(...baselineSeconds) / 1e9;
  return {
    case: name,
    numbers: { vsPeer: medianSpeedRatio, bestVsPeer: bestSpeedRatio, rate: gflops, peerRate: baselineGflops },
    text: `${medianSpeedRatio.toFixed(2).padStart(6)} × the speed of PyTorch (median), ${bestSpeedRatio.toFixed(2)} × (best runs): ${gflops.toFixed(0)} and ${baselineGflops.toFixed(0)} GFLOP/s`,
  };
}
