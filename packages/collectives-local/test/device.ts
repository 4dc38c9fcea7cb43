import { createRequire } from "node:module";
import {
  type Device,
  type DType,
  dtypeBytes,
  type Fence,
  FinalizedStorage,
  type Kernels,
  type MemoryStats,
  type Shape,
  numel,
  type Storage,
  type Stream,
  Tensor,
  type TraceEvent,
  contiguousStrides,
} from "@mosaic/core";
import { Completions } from "@mosaic/runtime";

interface Addon {
  bind(complete: (completion: number, code: number, message: string) => void): void;
  open(): [stream: object, address: number];
  close(stream: object): void;
  address(memory: ArrayBuffer): number;
  write(stream: object, address: number, bytes: Uint8Array): void;
  fence(stream: object, completion: number): void;
  hold(stream: object): () => void;
  fail(stream: object): void;
  openPolling(): number;
}

const addon = createRequire(import.meta.url)(
  `../prebuilds/${process.platform}-${process.arch}/mosaic_test_device.node`,
) as Addon;
const pendingCompletions = new Completions();
addon.bind(pendingCompletions.complete);

/** Makes a transport over shared memory whose ranks sleep in `poll`. Returns the address of its `MosaicTransport`. */
export const openPolling = (): number => addon.openPolling();

/** A device of type "cpu" without kernels. It has memory and a stream, which can be blocked or made to fail. */
export class TestDevice implements Device {
  readonly type: string;
  readonly index = 0;
  readonly stream: Stream;
  readonly kernels: Kernels = new Proxy({} as Kernels, {
    get(_, name): never {
      throw new Error(`the test device has no kernel ${String(name)}`);
    },
  });
  /** Bytes of storages that are still referenced. */
  allocated = 0;
  readonly #memory = new WeakMap<Storage, ArrayBuffer>();
  #native: object | undefined;

  constructor(type = "cpu") {
    const [native, address] = addon.open();
    this.type = type;
    this.#native = native;
    const stream: Stream = {
      handle: BigInt(address),
      record: (): Fence => ({ stream }),
      wait() {},
      synchronize: () => this.#waitForFence(),
    };
    this.stream = stream;
  }

  /** Returns a tensor filled with NaN, so that reads of memory that was never written are detected. */
  empty(shape: Shape, dtype: DType): Tensor {
    const bytes = numel(shape) * dtypeBytes[dtype];
    const memory = new ArrayBuffer(Math.max(bytes, 4));
    new Uint8Array(memory).fill(0xff);
    this.allocated += bytes;
    const storage = new FinalizedStorage(BigInt(addon.address(memory)), bytes, () => {
      this.allocated -= bytes;
      // Released in stream order, because submitted work may still use the memory.
      if (this.#native) this.#fence(this.#native, memory).catch(() => {});
    });
    this.#memory.set(storage, memory);
    return new Tensor({ device: this, dtype, storage, shape, strides: contiguousStrides(shape), offset: 0 });
  }

  write(out: Tensor, values: ArrayLike<number>): void {
    const bytes = encodeValues(values, out.dtype);
    addon.write(this.#open(), Number(out.storage.handle) + out.offset * dtypeBytes[out.dtype], bytes);
  }

  async read(x: Tensor): Promise<Float32Array> {
    await this.#waitForFence();
    const bytes = new Uint8Array(
      this.#memory.get(x.storage)!,
      x.offset * dtypeBytes[x.dtype],
      x.size * dtypeBytes[x.dtype],
    );
    return decodeValues(bytes, x.dtype);
  }

  memory(): MemoryStats {
    return { allocated: this.allocated, reserved: this.allocated, peak: this.allocated };
  }

  resetPeakMemory(): void {}
  startTrace(): void {}

  async stopTrace(): Promise<readonly TraceEvent[]> {
    return [];
  }

  /** Submits work that blocks the stream until the returned function is called. */
  hold(): () => void {
    return addon.hold(this.#open());
  }

  /** Makes the stream fail. */
  fail(): void {
    addon.fail(this.#open());
  }

  [Symbol.dispose](): void {
    if (this.#native) addon.close(this.#native);
    this.#native = undefined;
  }

  #open(): object {
    if (this.#native) return this.#native;
    throw new Error("the test device was closed");
  }

  async #waitForFence(): Promise<void> {
    await this.#fence(this.#open());
  }

  /** Keeps `heldMemory` alive until all work so far is done. Rejects with the failure of the stream. */
  #fence(native: object, heldMemory?: ArrayBuffer): Promise<void> {
    return pendingCompletions.expect(heldMemory, (completion) => addon.fence(native, completion));
  }
}

/** Rounds to the nearest value of a dtype, ties to even. */
export function roundTo(value: number, dtype: DType): number {
  if (dtype === "float32") return Math.fround(value);
  return decodeValues(encodeValues([value], dtype), dtype)[0]!;
}

function encodeValues(values: ArrayLike<number>, dtype: DType): Uint8Array {
  const float32Values = Float32Array.from(values);
  if (dtype === "float32") return new Uint8Array(float32Values.buffer);
  return new Uint8Array(Uint16Array.from(float32Values, dtype === "bfloat16" ? toBFloat16 : toFloat16).buffer);
}

function decodeValues(bytes: Uint8Array, dtype: DType): Float32Array {
  const copy = bytes.slice().buffer;
  if (dtype === "float32") return new Float32Array(copy);
  return Float32Array.from(new Uint16Array(copy), dtype === "bfloat16" ? fromBFloat16 : fromFloat16);
}

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

function toBFloat16(value: number): number {
  float[0] = value;
  const word = bits[0]!;
  return Number.isNaN(value) ? 0x7fc0 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
}

function fromBFloat16(half: number): number {
  bits[0] = half << 16;
  return float[0]!;
}

function fromFloat16(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const mantissa = half & 1023;
  if (exponent === 31) return mantissa ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (exponent === 0 ? mantissa * 2 ** -24 : (1024 + mantissa) * 2 ** (exponent - 25));
}

function toFloat16(value: number): number {
  if (Number.isNaN(value)) return 0x7e00;
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(-14, Math.min(15, Math.floor(Math.log2(size || 2 ** -24))));
  const unit = 2 ** (exponent - 10);
  const steps = roundHalfEven(size / unit);
  return sign | (steps < 1024 ? steps : ((exponent + 15) << 10) + (steps - 1024));
}

function roundHalfEven(x: number): number {
  const floor = Math.floor(x);
  const fraction = x - floor;
  return fraction > 0.5 || (fraction === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
}
