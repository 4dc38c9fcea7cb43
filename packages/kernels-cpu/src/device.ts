import { availableParallelism } from "node:os";
import {
  defineOptions,
  dtypeCodes,
  type Fence,
  formatValue,
  type KernelFeature,
  localWorldSize,
  option,
  OptionError,
  type OptionsOf,
  OutOfMemoryError,
  type Stream,
} from "@mosaic/core";
import { NativeDevice, NativeHandle } from "@mosaic/runtime";
import { type CpuAddon, getAddon, instructionSets, type Isa } from "./addon.ts";

/** Upper limit of `threads`. A larger number is a mistake, because no machine has so many cores. */
const MAX_THREADS = 1024;

export const cpuOptions = defineOptions("cpu", {
  /**
   * Number of compute threads, including the stream's own. Default: MOSAIC_THREADS, else an equal share of the cores.
   */
  threads: option.integer({ min: 1, max: MAX_THREADS, optional: true }),
  /** Distinguishes the devices of one process in messages. Default 0. */
  index: option.integer({ min: 0, default: 0 }),
  /**
   * Limit for bytes reserved from the system. Default: MOSAIC_MEMORY_LIMIT (`1500000000`, `512M`, `8G`), else no limit.
   */
  memoryLimit: option.integer({ min: 1, optional: true }),
});
/** Options of `cpu`. */
export type CpuOptions = OptionsOf<typeof cpuOptions>;

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Returns the threads of a device: the option, else MOSAIC_THREADS, else an equal share of the cores per local rank.
 */
export function threadCount(threads: number | undefined, environment: Environment = process.env): number {
  if (threads !== undefined) return checkThreadCount(threads, "threads");
  if (environment.MOSAIC_THREADS) return checkThreadCount(environment.MOSAIC_THREADS, "MOSAIC_THREADS");
  const availableCores = availableParallelism();
  // SLURM_CPUS_ON_NODE counts the cores of all ranks on this host. A rank bound to fewer cores is limited by
  // availableCores.
  const coresPerRank = Math.floor(
    (Number(environment.SLURM_CPUS_ON_NODE) || availableCores) / (localWorldSize(environment) ?? 1),
  );
  return Math.min(MAX_THREADS, availableCores, Math.max(1, coresPerRank));
}

/** Returns the limit in bytes; 0 for no limit. */
export function memoryLimit(bytes: number | undefined, environment: Environment = process.env): number {
  if (bytes !== undefined) return bytes;
  const text = environment.MOSAIC_MEMORY_LIMIT;
  if (!text) return 0;
  const [, digits, unit] = /^(\d+)([KMG]?)$/i.exec(text) ?? [];
  if (digits === undefined)
    throw optionError("MOSAIC_MEMORY_LIMIT", "a number of bytes, optionally followed by K, M or G", text);
  const scale = { "": 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 }[unit!.toUpperCase()]!;
  return checkPositiveInteger(Number(digits) * scale, "MOSAIC_MEMORY_LIMIT");
}

function checkThreadCount(value: number | string, where: string): number {
  const threads = checkPositiveInteger(value, where);
  if (threads <= MAX_THREADS) return threads;
  throw optionError(where, `at most ${MAX_THREADS} threads`, String(value));
}

/** Validates an integer ≥ 1. A string is the value of an environment variable, which a message shows as written. */
function checkPositiveInteger(requestedValue: number | string, where: string): number {
  const value =
    typeof requestedValue === "number" || typeof requestedValue === "string" ? Number(requestedValue) : Number.NaN;
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw optionError(where, "an integer ≥ 1", formatValue(requestedValue));
}

function optionError(where: string, expected: string, received: string): OptionError {
  return new OptionError({ where, expected, received });
}

class CpuFence implements Fence {
  readonly stream: CpuStream;
  /** Number of works submitted to the stream before the fence. */
  readonly position: number;

  constructor(stream: CpuStream, position: number) {
    this.stream = stream;
    this.position = position;
  }
}

/** The queue of one CPU device; its `handle` is a `MosaicStream *` (packages/runtime/include/mosaic/stream.h). */
class CpuStream implements Stream {
  readonly handle: bigint;
  readonly #device: NativeHandle<CpuAddon>;

  constructor(device: NativeHandle<CpuAddon>) {
    this.#device = device;
    this.handle = device.streamAddress;
  }

  record(): Fence {
    this.#device.begin("record");
    this.#device.native.record();
    return new CpuFence(this, this.#device.results[0]!);
  }

  /** @throws OptionError for a fence of another device type. */
  wait(fence: Fence): void {
    if (fence.stream === this) return;
    if (!(fence instanceof CpuFence)) {
      throw new OptionError({
        where: "stream.wait",
        expected: "a fence of a CPU stream",
        received: "a fence of another device type",
        remedy: "synchronize the other device before enqueueing work that needs its results",
      });
    }
    this.#device.begin("wait").number(fence.stream.#device.address).number(fence.position);
    this.#device.native.wait();
  }

  synchronize(): Promise<void> {
    return this.#device.expect("synchronize", undefined, () => this.#device.native.synchronize());
  }
}

/**
 * The processor as a device. A native thread runs enqueued work in order, with the help of a pool of workers; the host
 * only enqueues. Disposing the device lets enqueued work finish, then frees all of its memory.
 */
export class CpuDevice extends NativeDevice<CpuAddon> {
  readonly type = "cpu";
  override readonly features: readonly KernelFeature[] = [
    "softcap",
    "slopes",
    "dropout",
    "sampleMasks",
    "valueHeadDim",
  ];
  readonly stream: CpuStream;
  /** Number of compute threads, including the stream's own. */
  readonly threads: number;
  /** The instruction set of its kernels. */
  readonly instructionSet: Isa;

  constructor(options?: CpuOptions) {
    const { index, threads, memoryLimit: memoryLimitOption } = cpuOptions.parse(options);
    const count = threadCount(threads);
    const isa = instructionSets()[0]!;
    const addon = getAddon();
    const limitBytes = memoryLimit(memoryLimitOption);
    const handle = new NativeHandle(addon, {
      name: `cpu:${index}`,
      options: [count, limitBytes],
      ...(addon.native.guardsBlockEnds ? {} : { granularity: 64 }), // kSmallAlignment in native/memory/allocator.cc
      remedy:
        limitBytes > 0
          ? "release the tensors of each step with scope(() => …), shard the sequence over more ranks, or raise memoryLimit (MOSAIC_MEMORY_LIMIT)"
          : "release the tensors of each step with scope(() => …), or shard the sequence over more ranks",
    });
    super(index, handle);
    this.threads = count;
    this.instructionSet = isa;
    this.stream = new CpuStream(handle);
  }
}

/**
 * Creates a CPU device. A process may have any number of them.
 *
 * @example
 * ```ts
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu({ threads: 1 });
 * using x = device.empty([2, 2], "float32");
 * using square = device.empty([2, 2], "float32");
 * device.write(x, [1, 2, 3, 4]);
 * device.kernels.matmul(square, x, x, false); // returns at once
 * Array.from(await square.read()); // => [7, 10, 15, 22]
 * ```
 * @throws AddonLoadError if the native addon is missing or was built for another platform or version; OptionError for
 * invalid options; DeviceError if the system cannot create that many threads.
 */
export function cpu(options?: CpuOptions): CpuDevice {
  return new CpuDevice(options);
}

/** Features of this machine that the CPU device uses. */
export interface CpuFeatures {
  /** Instruction set of the kernels: the fastest supported one, or the one that MOSAIC_ISA names. */
  readonly isa: Isa;
  /** Instruction sets that this machine supports, each containing the one before. */
  readonly supported: readonly Isa[];
  /** Default number of threads of a device. */
  readonly threads: number;
}

/**
 * Returns the features that the native CPU device detected on this machine.
 *
 * @example
 * ```ts
 * import { features } from "@mosaic/kernels-cpu";
 * const { isa, supported } = features();
 * supported[0]; // => "scalar"
 * supported.includes(isa); // => true
 * ```
 * @throws OptionError if MOSAIC_ISA names an instruction set that this machine does not support.
 */
export function features(): CpuFeatures {
  const [isa, ...supported] = instructionSets();
  return { isa: isa!, supported, threads: threadCount(undefined) };
}

/**
 * Returns the peak rate, in billions of operations per second, of products on vector registers with `threads` threads,
 * as a reference for kernels. For float32, the products are fused multiply-adds. For bfloat16, they are dot products of
 * pairs, if the instruction set has them. Blocks the host for some tens of milliseconds; meant for benchmarks.
 */
export function fmaPeak(threads: number = threadCount(undefined), dtype: "float32" | "bfloat16" = "float32"): number {
  const isSupportedDType = dtype === "float32" || dtype === "bfloat16";
  if (!isSupportedDType) throw optionError("fmaPeak", '"float32" or "bfloat16"', formatValue(dtype));
  const { native, argumentBuffer } = getAddon();
  argumentBuffer.values[0] = threadCount(threads);
  argumentBuffer.values[1] = dtypeCodes[dtype];
  native.fmaPeak();
  return argumentBuffer.values[0];
}

/**
 * Returns the bandwidth, in billions of bytes per second, with which `threads` threads repeatedly read a working set of
 * `bytes`, as a reference for memory-bound kernels. Blocks the host while it allocates that memory and reads it several
 * times.
 *
 * @throws OutOfMemoryError if the system does not have enough memory for the working set.
 */
export function readBandwidth(bytes: number, threads: number = threadCount(undefined)): number {
  const isValidSize = Number.isSafeInteger(bytes) && bytes >= 1;
  if (!isValidSize) throw optionError("readBandwidth", "an integer number of bytes ≥ 1", formatValue(bytes));
  const { native, argumentBuffer } = getAddon();
  argumentBuffer.values[0] = threadCount(threads);
  argumentBuffer.values[1] = bytes;
  try {
    native.readBandwidth();
  } catch (error) {
    if (!(error instanceof Error && error.message.includes("out of memory"))) throw error;
    throw new OutOfMemoryError({
      where: "readBandwidth",
      expected: `${bytes} bytes of memory`,
      received: "a failed allocation",
      remedy: "pass fewer bytes",
    });
  }
  return argumentBuffer.values[0];
}
