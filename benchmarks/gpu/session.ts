import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { cudaSystem } from "@mosaic/kernels-cuda";
import { BaselineProcess } from "../src/peers.ts";
import type { BenchmarkContext, Implementation, Effort, Result } from "./bench.ts";
import { type Families, openFamilies, createTorchContender } from "./contenders.ts";
import type { Sizes } from "./problem.ts";

interface SessionOptions {
  readonly sizes: Sizes;
  readonly effort: Effort;
  readonly device: "cuda" | "cpu";
  /** Command of the PyTorch process. If undefined, only Mosaic is measured. */
  readonly peer: readonly string[] | undefined;
  /** The backends of PyTorch to measure. */
  readonly backends: readonly string[];
}

/** One run of the benchmark. Opens the device and the PyTorch process when they are first needed, and closes them. */
export class Session implements BenchmarkContext, AsyncDisposable {
  readonly sizes: Sizes;
  readonly effort: Effort;
  readonly device: "cuda" | "cpu";
  readonly #options: SessionOptions;
  #families: Families | undefined;
  #baseline: BaselineProcess | undefined;

  constructor(options: SessionOptions) {
    this.sizes = options.sizes;
    this.effort = options.effort;
    this.device = options.device;
    this.#options = options;
  }

  async implementations(): Promise<readonly Implementation[]> {
    this.#families ??= await openFamilies(this.device);
    const baseline = this.baseline();
    const baselineImplementations = baseline
      ? this.#options.backends.map((backend) => createTorchContender(baseline, backend))
      : [];
    return [...this.#families.implementations, ...baselineImplementations];
  }

  baseline(): BaselineProcess | undefined {
    if (this.#baseline?.hasEnded) this.#baseline = undefined;
    if (this.#options.peer) this.#baseline ??= new BaselineProcess(this.#options.peer);
    return this.#baseline;
  }

  async close(): Promise<void> {
    this.#baseline?.[Symbol.dispose]();
    this.#baseline = undefined;
    await this.#families?.[Symbol.asyncDispose]();
    this.#families = undefined;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Describes the machine, versions and command with which results are measured. */
export async function describeHost(device: "cuda" | "cpu", baseline: BaselineProcess | undefined): Promise<Result> {
  const manifestUrl = new URL("../package.json", import.meta.resolve("@mosaic/core"));
  return {
    case: "host",
    date: new Date().toISOString().slice(0, 10),
    command: `npm run bench:gpu -- ${process.argv.slice(2).join(" ")}`.trim(),
    mosaic: (JSON.parse(readFileSync(manifestUrl, "utf8")) as { version: string }).version,
    node: process.version.slice(1),
    ...(device === "cuda" ? describeGpu() : { gpu: "none (measured on a CPU)" }),
    ...(baseline && { peer: await baseline.request<object>({ op: "hello" }) }),
  };
}

function describeGpu(): object {
  const { driver, library, gpus, cublasLt } = cudaSystem();
  const { name, capability, bytes } = gpus[0]!;
  // The driver's API does not report the driver version.
  const queryResult = spawnSync("nvidia-smi", ["--query-gpu=driver_version", "--format=csv,noheader"], {
    encoding: "utf8",
  });
  const driverFields = queryResult.status === 0 ? { driver: queryResult.stdout.split("\n")[0]!.trim() } : {};
  return {
    gpu: name,
    capability,
    gibibytes: Math.round(bytes / 2 ** 30),
    ...driverFields,
    cuda: driver,
    library,
    cublasLt,
  };
}

/** Returns a difference between machines whose results must not be in one file, or undefined. */
export function describeDifference(storedHost: Result, measuredHost: Result): string | undefined {
  const key = ["gpu", "driver", "cuda", "mosaic"].find((name) => storedHost[name] !== measuredHost[name]);
  return key && `${key} was ${String(storedHost[key])}, now ${String(measuredHost[key])}`;
}
