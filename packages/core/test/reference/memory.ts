import type { DType } from "../../src/storage.ts";
import type { Shape } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";

/** Keeps a number as a dtype would. */
export type Round = (value: number) => number;

const scratch = new Float32Array(1);
const bits = new Uint32Array(scratch.buffer);

/** Nearest even, by adding just under half of what is cut off. */
export function toBfloat16(value: number): number {
  scratch[0] = value;
  if (Number.isNaN(value)) return value;
  bits[0] = (bits[0]! + 0x7fff + ((bits[0]! >>> 16) & 1)) & 0xffff0000;
  return scratch[0];
}

/** Nearest even on a grid of 2⁻¹⁰ of the value's power of two, or of 2⁻²⁴ below 2⁻¹⁴. */
export function toFloat16(value: number): number {
  if (!Number.isFinite(value) || value === 0) return value;
  const exponent = Math.max(-14, Math.floor(Math.log2(Math.abs(value))));
  const grid = 2 ** (exponent - 10);
  const steps = value / grid;
  const below = Math.floor(steps);
  const up = steps - below > 0.5 || (steps - below === 0.5 && below % 2 !== 0);
  const rounded = (below + (up ? 1 : 0)) * grid;
  return Math.abs(rounded) > 65504 ? Math.sign(value) * Infinity : rounded;
}

/** Every address in row-major order of `shape`, to which x is broadcast. */
export function addresses(x: Pick<Tensor, "shape" | "strides" | "offset">, shape: Shape = x.shape): number[] {
  let at = [x.offset];
  for (const [axis, length] of shape.entries()) {
    const own = axis - shape.length + x.shape.length;
    const stride = own >= 0 && x.shape[own] === length ? x.strides[own]! : 0;
    at = at.flatMap((base) => Array.from({ length }, (_, i) => base + i * stride));
  }
  return at;
}

/**
 * Device memory by handle, one JavaScript number per element. Fresh memory is NaN and freed memory is gone, so that
 * reading what was never written, or is no longer there, shows.
 */
export class Memory {
  readonly #blocks = new Map<bigint, Float64Array>();
  readonly #round: Readonly<Record<DType, Round>>;
  #next = 1n;

  constructor(double: boolean) {
    this.#round = { float32: double ? (value) => value : Math.fround, bfloat16: toBfloat16, float16: toFloat16 };
  }

  allocate(size: number): bigint {
    const handle = this.#next++;
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

  /** Values in row-major order, broadcast to `shape`. */
  load(x: Tensor, shape: Shape = x.shape): number[] {
    const block = this.block(x);
    return addresses(x, shape).map((at) => block[at]!);
  }

  /** A number as a kernel that computes in float32 has it. */
  float32(value: number): number {
    return this.#round.float32(value);
  }

  store(out: Tensor, values: ArrayLike<number>): void {
    const block = this.block(out);
    const round = this.#round[out.dtype];
    for (const [i, at] of addresses(out).entries()) block[at] = round(values[i]!);
  }
}
