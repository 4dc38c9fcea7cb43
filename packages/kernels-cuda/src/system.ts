import { translated } from "@mosaic/core/native";
import { runtime } from "./runtime.ts";

/** One GPU that the driver shows. */
export interface CudaGpu {
  readonly name: string;
  /** "9.0" */
  readonly capability: string;
  readonly bytes: number;
}

/** The driver and its GPUs. */
export interface CudaSystem {
  /** The CUDA version that the driver is for: "12.4". */
  readonly driver: string;
  /** The library that was loaded. */
  readonly library: string;
  readonly gpus: readonly CudaGpu[];
}

/**
 * What the driver finds on this machine.
 *
 * @throws DeviceError that says what is missing, and what to do about it.
 */
export function cudaSystem(): CudaSystem {
  const [driver, library, ...rest] = translated(() => runtime().native.probe());
  const gpus = Array.from({ length: rest.length / 3 }, (_, i) => {
    return { name: rest[3 * i]!, capability: rest[3 * i + 1]!, bytes: Number(rest[3 * i + 2]) };
  });
  return { driver: driver!, library: library!, gpus };
}
