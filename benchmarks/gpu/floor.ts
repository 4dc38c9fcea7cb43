import { bytesOf, exponentialsOf, flopsOf, type Problem } from "./problem.ts";

/** What a card can do at most, each a second. */
export interface Ceilings {
  /** Operations of a large bfloat16 product. */
  readonly flops: number;
  /** Bytes read and written. */
  readonly bytes: number;
  /** Exponentials: 16 a clock of each multiprocessor (CUDA C++ Programming Guide, throughput of native instructions). */
  readonly exponentials: number;
}

/** Of an NVIDIA H200, measured elsewhere: a product of 8192³ on random data, a copy of gigabytes, 132 · 16 · 1.755 GHz. */
export const h200: Ceilings = { flops: 790e12, bytes: 4.3e12, exponentials: 3.7e12 };

/** Seconds that each kind of work takes at its ceiling. No version runs much faster than the longest. */
export interface Floor {
  readonly products: number;
  readonly memory: number;
  readonly exponentials: number;
  readonly seconds: number;
}

export function floorOf(problem: Problem, ceilings: Ceilings): Floor {
  const products = flopsOf(problem) / ceilings.flops;
  const memory = bytesOf(problem) / ceilings.bytes;
  const exponentials = exponentialsOf(problem) / ceilings.exponentials;
  return { products, memory, exponentials, seconds: Math.max(products, memory, exponentials) };
}
