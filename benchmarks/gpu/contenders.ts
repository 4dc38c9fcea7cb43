import * as mosaic from "@mosaic/attention";
import type { Device } from "@mosaic/core";
import { cuda } from "@mosaic/kernels-cuda";
import type { BaselineProcess } from "../src/peers.ts";
import type { Implementation, Errors, Sample } from "./bench.ts";
import { attend, disposeAll, drawOperands, type Operands, type Problem, detachGradients } from "./problem.ts";
import { checkAgainstDefinition, checkSamples } from "./check-results.ts";

/** Time of one step, by the device's clock. */
interface StepTiming {
  readonly seconds: number;
  /**
   * Seconds of each kernel, by name. They exclude launch latency and the time in which the device waited for the host.
   */
  readonly secondsByKernel: Readonly<Record<string, number>>;
}

/**
 * Times steps that enqueue work, by events in the stream. Each time is from one mark to the next. Host time is excluded
 * as long as the device has queued work, so the first step should be a long one whose time is not used.
 */
export async function timeSteps(device: Device, steps: readonly (() => void)[]): Promise<readonly StepTiming[]> {
  using marker = device.empty([1], "float32");
  // Attention draws no random numbers, so this kernel occurs in the trace only as a mark.
  const setMark = (): void => device.kernels.random(marker, { kind: "uniform", low: 0, high: 1, seed: 0, stream: 0 });
  device.startTrace();
  setMark();
  for (const step of steps) {
    step();
    setMark();
  }
  const events = await device.stopTrace();
  const markIndices = events.flatMap(({ name }, i) => (name === events[0]!.name ? [i] : []));
  if (markIndices.length !== steps.length + 1) {
    throw new Error(
      `timeSteps: expected ${steps.length + 1} marks in the trace, received ${markIndices.length}; omit random numbers in steps`,
    );
  }
  return steps.map((_, i) => {
    const [startIndex, endIndex] = [markIndices[i]!, markIndices[i + 1]!];
    const secondsByKernel: Record<string, number> = {};
    for (const { name, start, end } of events.slice(startIndex + 1, endIndex)) {
      secondsByKernel[name] = (secondsByKernel[name] ?? 0) + (end - start) / 1e9;
    }
    return { seconds: (events[endIndex]!.start - events[startIndex]!.end) / 1e9, secondsByKernel };
  });
}

/** Number of operand sets. Runs alternate between them, so that no run finds its operands in the cache. */
export const NUM_OPERAND_SETS = 2;

/** Mosaic's attention on one device, through the TypeScript API, with 16-bit q, k, v and 16-bit results. */
export class MosaicImplementation implements Implementation {
  readonly name: string;
  readonly #ctx: mosaic.Context;
  #problem: Problem | undefined;
  #operandSets: readonly Operands[] = [];

  constructor(name: string, ctx: mosaic.Context) {
    this.name = name;
    this.#ctx = ctx;
  }

  check(problem: Problem): Promise<Errors> {
    return checkAgainstDefinition(this.#ctx, problem);
  }

  /**
   * Warms up, and also checks some rows of the result, because a kernel may be correct at one size and wrong at
   * another.
   */
  async prepare(problem: Problem): Promise<number> {
    await this.release();
    this.#problem = problem;
    this.#operandSets = Array.from({ length: NUM_OPERAND_SETS }, () => drawOperands(this.#ctx, problem));
    await checkSamples(this.#ctx, this.#operandSets[0]!, problem);
    const { seconds } = await this.sample(1);
    return seconds[0]!;
  }

  async sample(count: number): Promise<Sample> {
    const operandSets = Array.from({ length: count + 1 }, (_, run) => this.#operandSets[run % NUM_OPERAND_SETS]!);
    const isForward = this.#problem!.direction === "forward";
    const timings = await timeSteps(
      this.#ctx.device,
      operandSets.flatMap((operands) => (isForward ? [this.#forward(operands)] : this.#backward(operands))),
    );
    const reportedTimings = timings.slice(isForward ? 1 : 2).filter((_, i) => isForward || i % 2 === 1);
    const kernelNames = Object.keys(reportedTimings[0]!.secondsByKernel);
    const meanSeconds = (name: string): number =>
      reportedTimings.reduce((sum, { secondsByKernel }) => sum + secondsByKernel[name]!, 0) / reportedTimings.length;
    return {
      seconds: reportedTimings.map(({ seconds }) => seconds),
      secondsByKernel: Object.fromEntries(kernelNames.map((name) => [name, meanSeconds(name)])),
    };
  }

  #forward(operands: Operands): () => void {
    return () => attend(this.#ctx, operands, this.#problem!).dispose();
  }

  /** Returns two steps: the forward, whose time is not reported, and the backward. */
  #backward(operands: Operands): [() => void, () => void] {
    let out: mosaic.Tensor;
    return [
      () => {
        out = attend(this.#ctx, operands, this.#problem!);
      },
      () => {
        out.backward(operands[3]);
        out.dispose();
        disposeAll(detachGradients(operands));
      },
    ];
  }

  async release(): Promise<void> {
    for (const operands of this.#operandSets) disposeAll(operands);
    this.#operandSets = [];
    this.#problem = undefined;
    await this.#ctx.device.stream.synchronize();
  }
}

/** Backends to which PyTorch's scaled_dot_product_attention can be restricted. */
export const torchBackends = ["cudnn", "flash", "flash-deterministic", "efficient"] as const;

/** Returns one backend of PyTorch, which runs in the baseline process. */
export function createTorchContender(baseline: BaselineProcess, backend: string): Implementation {
  return {
    name: backend,
    check: (problem) => baseline.request<Errors>({ op: "check", backend, problem }),
    async prepare(problem: Problem) {
      const { seconds } = await baseline.request<Sample>({ op: "prepare", backend, problem });
      return seconds[0]!;
    },
    sample: (count) => baseline.request<Sample>({ op: "sample", backend, count }),
    async release() {
      await baseline.request({ op: "release" });
    },
  };
}

/** Environment variable that selects the family of attention kernels. It is read when a device is opened. */
const FAMILY_VARIABLE = "MOSAIC_CUDA_FAMILY";
/** Compute capability 9.0, for which there are kernels with TMA and wgmma. */
const HOPPER_CAPABILITY = 90;

/** Mosaic's contenders, one for each family of kernels that the device has. Disposal closes their contexts. */
export interface Families extends AsyncDisposable {
  readonly implementations: readonly MosaicImplementation[];
}

/** Opens the device once for each family of kernels. On a CPU there is one contender, which measures the CPU. */
export async function openFamilies(device: "cuda" | "cpu"): Promise<Families> {
  const contexts: mosaic.Context[] = [];
  const openImplementation = async (name: string, familyDevice: mosaic.Device): Promise<MosaicImplementation> => {
    const ctx = await mosaic.init({ device: familyDevice, rank: 0, worldSize: 1 });
    contexts.push(ctx);
    return new MosaicImplementation(name, ctx);
  };
  const implementations: MosaicImplementation[] = [];
  if (device === "cpu") implementations.push(await openImplementation("cpu", mosaic.cpu()));
  else {
    const portableFamily = openFamilyDevice("portable");
    implementations.push(await openImplementation("portable", portableFamily));
    if (portableFamily.capability === HOPPER_CAPABILITY)
      implementations.push(await openImplementation("hopper", openFamilyDevice("hopper")));
  }
  return {
    implementations,
    async [Symbol.asyncDispose]() {
      for (const ctx of contexts) await ctx.close();
    },
  };
}

function openFamilyDevice(family: string): ReturnType<typeof cuda> {
  const previousFamily = process.env[FAMILY_VARIABLE];
  process.env[FAMILY_VARIABLE] = family;
  try {
    return cuda({ index: 0 });
  } finally {
    if (previousFamily === undefined) delete process.env[FAMILY_VARIABLE];
    else process.env[FAMILY_VARIABLE] = previousFamily;
  }
}
