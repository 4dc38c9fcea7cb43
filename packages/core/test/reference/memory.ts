import type { DType } from "../../src/storage.ts";
import type { Shape } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";

/** Rounds a number to a dtype. */
export type RoundFunction = (value: number) => number;

const scratchFloat = new Float32Array(1);
const scratchBits = new Uint32Array(scratchFloat.buffer);

/** Rounds to nearest even, by adding just under half a unit of the last kept bit. */
export function toBfloat16(value: number): number {
  scratchFloat[0] = value;
  if (Number.isNaN(value)) return value;
  scratchBits[0] = (scratchBits[0]! + 0x7fff + ((scratchBits[0]! >>> 16) & 1)) & 0xffff0000;
  return scratchFloat[0];
}

/** Rounds to nearest even on a grid of 2⁻¹⁰ times the value's power of two, or of 2⁻²⁴ below 2⁻¹⁴. */
export function toFloat16(value: number): number {
  if (!Number.isFinite(value) || value === 0) return value;
  const exponent = Math.max(-14, Math.floor(Math.log2(Math.abs(value))));
  const gridStep = 2 ** (exponent - 10);
  const steps = value / gridStep;
  const lowerStep = Math.floor(steps);
  const roundsUp = steps - lowerStep > 0.5 || (steps - lowerStep === 0.5 && lowerStep % 2 !== 0);
  const rounded = (lowerStep + (roundsUp ? 1 : 0)) * gridStep;
  return Math.abs(rounded) > 65504 ? Math.sign(value) * Infinity : rounded;
}

/** Returns the address of every element in row-major order of `shape`, to which x is broadcast. */
export function addresses(x: Pick<Tensor, "shape" | "strides" | "offset">, shape: Shape = x.shape): number[] {
  let elementAddresses = [x.offset];
  for (const [axis, length] of shape.entries()) {
    const inputAxis = axis - shape.length + x.shape.length;
    const stride = inputAxis >= 0 && x.shape[inputAxis] === length ? x.strides[inputAxis]! : 0;
    elementAddresses = elementAddresses.flatMap((base) => Array.from({ length }, (_, i) => base + i * stride));
  }
  return elementAddresses;
}

/**
 * Device memory by handle, one JavaScript number per element. New memory is filled with NaN and freed memory is
 * removed, so that reads of uninitialized or freed memory are detected.
 */
export class Memory {
  readonly #blocks = new Map<bigint, Float64Array>();
  readonly #round: Readonly<Record<DType, RoundFunction>>;
  #nextHandle = 1n;

  constructor(double: boolean) {
    this.#round = { float32: double ? (value) => value : Math.fround, bfloat16: toBfloat16, float16: toFloat16 };
  }

  allocate(size: number): bigint {
    const handle = this.#nextHandle++;
    this.#blocks.set(handle, new Float64Array(size).fill(NaN));
    return handle;
  }

  free(handle: bigint): void {
    this.#blocks.delete(handle);
  }

  block(x: Tensor): Float64Array {
    const block = this.#blocks.get(x.storage.handle);
    if (!block) throw new Error(`memory of [${x.shape}] used after it was freed`);
    return block;
  }

  /** Returns the values in row-major order, broadcast to `shape`. */
  load(x: Tensor, shape: Shape = x.shape): number[] {
    const block = this.block(x);
    return addresses(x, shape).map((address) => block[address]!);
  }

  /** Rounds a number as a kernel that computes in float32 does. */
  float32(value: number): number {
    return this.#round.float32(value);
  }

  store(out: Tensor, values: ArrayLike<number>): void {
    const block = this.block(out);
    const round = this.#round[out.dtype];
    for (const [i, address] of addresses(out).entries()) block[address] = round(values[i]!);
  }
}
