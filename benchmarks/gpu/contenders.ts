import * as mosaic from "@mosaic/attention";
import type { Device } from "@mosaic/core";
import { cuda } from "@mosaic/kernels-cuda";
import type { BaselineProcess } from "../src/peers.ts";
import type { Implementation, Errors, Sample } from "./bench.ts";
import { attend, disposeAll, drawOperands, type Operands, type Problem, detachGradients } from "./problem.ts";
import { checkAgainstDefinition, checkSamples } from "./check-results.ts";

/** One step on the device's clock. */
interface StepTiming {
  readonly seconds: number;
  /** Seconds of each kernel, by name. What is not in them are launches, and waiting for the host if it was late. */
  readonly secondsByKernel: Readonly<Record<string, number>>;
}

/**
 * Times steps that enqueue work, by events in the stream: each lap is from one mark to the next. The host is not in it as
 * long as the device has work waiting, so let the first step be one that does not count, and long enough.
 */
export async function timeSteps(device: Device, steps: readonly (() => void)[]): Promise<readonly StepTiming[]> {
  using marker = device.empty([1], "float32");
  // Attention draws no random numbers: no other contender uses this kernel.
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

/** Operands take turns, so that no run finds what the one before it left in the cache. */
export const NUM_OPERAND_SETS = 2;

/** Mosaic's attention on one device, through the TypeScript API: from q, k, v in 16 bits to results in 16 bits. */
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

  /** Beside warming up it looks at some rows of the result: a kernel may be right at one size and wrong at another. */
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

  /** The forward is a step of its own, which is not timed. */
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

/** What PyTorch's scaled_dot_product_attention may be set to use. */
export const torchBackends = ["cudnn", "flash", "flash-deterministic", "efficient"] as const;

/** One backend of PyTorch, in the peer's process. */
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

/** Read when a device is opened: which family of attention kernels it takes. */
const FAMILY_VARIABLE = "MOSAIC_CUDA_FAMILY";
/** Compute capability 9.0: where there are kernels of TMA and wgmma. */
const HOPPER_CAPABILITY = 90;

/** Our side: a contender for each family of kernels that the device has, and the contexts to close. */
export interface Families extends AsyncDisposable {
  readonly implementations: readonly MosaicImplementation[];
}

/** Opens the device once for each family. On a CPU there is one, and its times are times of a CPU. */
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
