import {
  dtypeBytes,
  dtypeCodes,
  OptionError,
  type Shape,
  type Slice,
  sliceTypeCodes,
  type Span,
  type Tensor,
  formatDevice,
} from "@mosaic/core";
import { checkPendingAccesses } from "./pending-accesses.ts";
import { type NativeStorage, releasedMemoryError } from "./storage.ts";

/** Exports of every addon. `bind` sets the array of arguments and the callback for completions. */
export interface NativeAddon {
  bind(argumentBuffer: Float64Array, onCompletion?: (id: number, code: number, message: string) => void): void;
}

const MAX_AXES = 12;

/**
 * Arguments of native calls, as doubles in one array that JavaScript and native code share. Writing numbers into it is
 * many times cheaper than passing objects. The first double is the address of the device, and on return the result.
 * Counterpart: include/mosaic/argument_reader.h.
 */
export class ArgumentBuffer {
  values: Float64Array = new Float64Array(1024);
  readonly #native: NativeAddon;
  #nextIndex = 0;
  #owner: object | undefined;
  #where = "";

  constructor(native: NativeAddon) {
    this.#native = native;
  }

  /** Begins a call to the device at `address`; tensors must belong to `owner`. */
  begin(owner: object, address: number, where: string): this {
    this.#owner = owner;
    this.#where = where;
    this.values[0] = address;
    this.#nextIndex = 1;
    return this;
  }

  /** Name of the call. */
  get where(): string {
    return this.#where;
  }

  number(value: number): this {
    this.values[this.#nextIndex++] = value;
    return this;
  }

  /** Writes a tensor. `isMutated`: the call changes its elements. */
  view(x: Tensor, isMutated = false): this {
    const { shape, strides, storage } = x;
    // Storages of other devices have a different or no owner.
    const { owner, address, pendingAccesses } = storage as NativeStorage;
    if (owner !== this.#owner) this.#rejectForeign(x);
    if (pendingAccesses !== undefined) checkPendingAccesses(this.#where, x, isMutated);
    if (x.isDisposed) x.assertNotDisposed(this.#where);
    const rank = shape.length;
    if (rank > MAX_AXES) this.#rejectRank(rank);
    this.#ensureCapacity(3 + 2 * rank);
    const { values } = this;
    let nextIndex = this.#nextIndex;
    values[nextIndex++] = address + x.offset * dtypeBytes[x.dtype];
    values[nextIndex++] = dtypeCodes[x.dtype];
    values[nextIndex++] = rank;
    for (let axis = 0; axis < rank; axis++) values[nextIndex++] = shape[axis]!;
    for (let axis = 0; axis < rank; axis++) values[nextIndex++] = strides[axis]!;
    this.#nextIndex = nextIndex;
    return this;
  }

  spans(spans: readonly Span[]): this {
    this.#ensureCapacity(1 + 3 * spans.length);
    const { values } = this;
    let nextIndex = this.#nextIndex;
    values[nextIndex++] = spans.length;
    for (const { start, length, step } of spans) {
      values[nextIndex++] = start;
      values[nextIndex++] = length;
      values[nextIndex++] = step;
    }
    this.#nextIndex = nextIndex;
    return this;
  }

  slices(slices: readonly Slice[]): this {
    this.#ensureCapacity(1 + 5 * slices.length);
    const { values } = this;
    let nextIndex = this.#nextIndex;
    values[nextIndex++] = slices.length;
    for (const { q0, q1, k0, k1, type } of slices) {
      values[nextIndex++] = q0;
      values[nextIndex++] = q1;
      values[nextIndex++] = k0;
      values[nextIndex++] = k1;
      values[nextIndex++] = sliceTypeCodes[type];
    }
    this.#nextIndex = nextIndex;
    return this;
  }

  /** Writes a list of slices for each sample. */
  slicesBySample(sliceLists: readonly (readonly Slice[])[]): this {
    this.number(sliceLists.length);
    for (const slices of sliceLists) this.slices(slices);
    return this;
  }

  /** Writes one stride for each axis. */
  strides(strides: Shape): this {
    if (strides.length > MAX_AXES) this.#rejectRank(strides.length);
    this.#ensureCapacity(1 + strides.length);
    this.number(strides.length);
    for (const stride of strides) this.number(stride);
    return this;
  }

  /** Grows the array if `count` more doubles and a reserve for scalars do not fit. */
  #ensureCapacity(count: number): void {
    const requiredLength = this.#nextIndex + count + 16;
    if (requiredLength <= this.values.length) return;
    const grownValues = new Float64Array(2 * requiredLength);
    grownValues.set(this.values);
    this.values = grownValues;
    this.#native.bind(grownValues);
  }

  #rejectForeign(x: Tensor): never {
    x.assertNotDisposed(this.#where);
    if (x.storage.isReleased) throw releasedMemoryError(this.#where, x.shape);
    throw new OptionError({
      where: this.#where,
      expected: "a tensor on this device",
      received: `a tensor on ${formatDevice(x.device)}`,
      remedy: "copy the values: fromArray(device, await x.read(), x.shape, { dtype: x.dtype })",
    });
  }

  #rejectRank(rank: number): never {
    throw new OptionError({
      where: this.#where,
      expected: `at most ${MAX_AXES} axes`,
      received: String(rank),
      remedy: "merge adjacent axes with reshape",
    });
  }
}
