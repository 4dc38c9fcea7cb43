import {
  type AttentionModifiers,
  type Device,
  type DType,
  numel,
  type Slice,
  type Span,
  type Tensor,
  type Tile,
} from "@mosaic/core";
import { createHeadsFirst, listPositions, takeRows } from "../backend/shard.ts";
import { checkClose, magnitude } from "../check.ts";
import { attentionOracle, attentionOracleBackward, type AttentionProblem } from "../oracle/attention.ts";
import { normals } from "../oracle/numbers.ts";
import { allocate, type StorageOrder, tensorFrom, type TensorOptions } from "./tensors.ts";

/** Rows of the sequences that are computed: spans of queries, and blocks of keys, which are folded one by one. */
export interface AttentionBlocks {
  readonly queries: readonly Span[];
  readonly keys: readonly (readonly Span[])[];
}

/** Names of the results of attention. */
export type AttentionResult = "out" | "lse" | "dq" | "dk" | "dv";

export interface AttentionCase extends AttentionBlocks {
  readonly mask: readonly Slice[];
  readonly modifiers?: AttentionModifiers;
  readonly problem: AttentionProblem;
  readonly dtype: DType;
  readonly storageOrder?: StorageOrder;
  /** Factors on the tolerance of results. Default 1. A result with the factor Infinity is not compared. */
  readonly factors?: Partial<Readonly<Record<AttentionResult, number>>>;
}

/** Runs forward and backward of a case on a device, and compares all results with the oracle. */
export async function checkAttention(
  device: Device,
  attention: AttentionCase,
  tolerance: Readonly<Record<DType, number>>,
): Promise<void> {
  using run = new AttentionRun(device, attention, tolerance);
  await run.checkForward();
  await run.checkBackward();
}

/** One block of keys and values, with the positions of its rows. */
interface KeyBlock {
  readonly k: Tensor;
  readonly v: Tensor;
  readonly positions: readonly number[];
  readonly tile: Tile;
}

/** The number of rows and the width of a row of an operand in the problem. */
interface OperandSize {
  readonly rows: number;
  readonly width: number;
}

/** The tensors of a case on a device. `checkForward` computes `out` and `lse`, which `checkBackward` requires. */
class AttentionRun implements Disposable {
  readonly #device: Device;
  readonly #attention: AttentionCase;
  readonly #tolerance: Readonly<Record<DType, number>>;
  /** The positions of the queries. */
  readonly #rows: readonly number[];
  readonly #sizes: Readonly<Record<"q" | "k" | "v" | "out", OperandSize>>;
  /** dOut [B,H,S,D] of all queries of the problem. It is NaN in rows whose q is NaN. */
  readonly #fullDOut: Float64Array;
  readonly #slopes: Tensor | undefined;
  readonly #q: Tensor;
  readonly #dOut: Tensor;
  readonly #out: Tensor;
  readonly #lse: Tensor;
  readonly #blocks: readonly KeyBlock[];

  constructor(device: Device, attention: AttentionCase, tolerance: Readonly<Record<DType, number>>) {
    const { problem, queries, keys, dtype, storageOrder = "dense" } = attention;
    const { batch, numHeads, headDim, valueHeadDim = headDim } = problem;
    [this.#device, this.#attention, this.#tolerance] = [device, attention, tolerance];
    this.#rows = listPositions(queries);
    this.#sizes = {
      q: { rows: problem.queries, width: headDim },
      k: { rows: problem.keys, width: headDim },
      v: { rows: problem.keys, width: valueHeadDim },
      out: { rows: problem.queries, width: valueHeadDim },
    };
    const rowOffset = (i: number): number => Math.floor(i / valueHeadDim) * headDim;
    this.#fullDOut = normals((problem.q.length / headDim) * valueHeadDim, 4, dtype).map((x, i) =>
      Number.isNaN(problem.q[rowOffset(i)]) ? Number.NaN : x,
    );
    const slopes = problem.modifiers?.slopes;
    this.#slopes = slopes && tensorFrom(device, slopes, { shape: [slopes.length] });
    const shape = [batch, numHeads, this.#rows.length, headDim];
    const outShape = shape.with(3, valueHeadDim);
    this.#q = this.#createOperand("q", problem.q, this.#rows, shape);
    this.#dOut = this.#createOperand("out", this.#fullDOut, this.#rows, outShape);
    this.#out = constantTensor(device, 0, { shape: outShape, storageOrder });
    this.#lse = constantTensor(device, Number.NEGATIVE_INFINITY, { shape: shape.slice(0, 3), storageOrder });
    this.#blocks = keys.map((spans) => this.#createBlock(spans));
  }

  /** Folds all blocks into one state, and compares it with the oracle. */
  async checkForward(): Promise<void> {
    const [q, out, lse] = [this.#q, this.#out, this.#lse];
    for (const { k, v, tile } of this.#blocks) this.#device.kernels.attend({ out, lse }, q, { k, v }, tile);
    const expected = attentionOracle(this.#attention.problem);
    const { out: outSize, q: qSize } = this.#sizes;
    this.#check(await out.read(), takeRows(expected.out, this.#rows, outSize), "out");
    this.#check(await lse.read(), takeRows(expected.lse, this.#rows, { ...qSize, width: 1 }), "lse");
  }

  /** Compares the gradients of all blocks with the oracle. */
  async checkBackward(): Promise<void> {
    const { problem, storageOrder = "dense" } = this.#attention;
    const { q: qSize, k: kSize, v: vSize, out: outSize } = this.#sizes;
    const expected = attentionOracleBackward(problem, maskRows(this.#fullDOut, this.#rows, outSize));
    const { kernels } = this.#device;
    const [q, dOut, lse] = [this.#q, this.#dOut, this.#lse];
    using delta = constantTensor(this.#device, Number.NaN, { shape: lse.shape, storageOrder });
    kernels.rowDot(delta, dOut, this.#out);
    using dq = constantTensor(this.#device, 0, { shape: q.shape, storageOrder });
    const addOne = (values: Float64Array): Float64Array => values.map((x) => x + 1);
    for (const { k, v, tile, positions } of this.#blocks) {
      using dk = constantTensor(this.#device, 1, { shape: k.shape, storageOrder });
      using dv = constantTensor(this.#device, 1, { shape: v.shape, storageOrder });
      kernels.attendBackward({ dq, dk, dv }, q, { dOut, lse, delta }, { k, v }, tile);
      this.#check(await dk.read(), addOne(takeRows(expected.dk, positions, kSize)), "dk", ", accumulated onto 1");
      this.#check(await dv.read(), addOne(takeRows(expected.dv, positions, vSize)), "dv", ", accumulated onto 1");
    }
    this.#check(await dq.read(), takeRows(expected.dq, this.#rows, qSize), "dq");
  }

  [Symbol.dispose](): void {
    const blockTensors = this.#blocks.flatMap(({ k, v }) => [k, v]);
    for (const tensor of [this.#slopes, this.#q, this.#dOut, this.#out, this.#lse, ...blockTensors])
      tensor?.[Symbol.dispose]();
  }

  #createBlock(spans: readonly Span[]): KeyBlock {
    const { problem, queries, mask, modifiers } = this.#attention;
    const { batch, numKvHeads, headDim, valueHeadDim = headDim, scale } = problem;
    const positions = listPositions(spans);
    const shape = [batch, numKvHeads, positions.length, headDim];
    const { softcap, dropout, origin } = problem.modifiers ?? {};
    const kernelModifiers = problem.modifiers && {
      ...{ softcap, slopes: this.#slopes, dropout },
      ...(origin && { origin }),
    };
    const tileModifiers = modifiers || kernelModifiers ? { ...modifiers, ...kernelModifiers } : undefined;
    return {
      k: this.#createOperand("k", problem.k, positions, shape),
      v: this.#createOperand("v", problem.v, positions, shape.with(3, valueHeadDim)),
      positions,
      tile: { q: queries, k: spans, mask, scale, modifiers: tileModifiers },
    };
  }

  /** Creates a tensor of some rows of an operand. */
  #createOperand(
    name: "q" | "k" | "v" | "out",
    values: Float64Array,
    positions: readonly number[],
    shape: readonly number[],
  ): Tensor {
    const { dtype, storageOrder = "dense" } = this.#attention;
    return stridedTensor(this.#device, takeRows(values, positions, this.#sizes[name]), { shape, dtype, storageOrder });
  }

  #check(actual: Float32Array, expected: Float64Array, name: AttentionResult, note = ""): void {
    const { dtype, factors = {} } = this.#attention;
    const factor = factors[name] ?? 1;
    if (factor === Infinity) return;
    checkClose(actual, expected, factor * this.#tolerance[dtype] * (1 + magnitude(expected)), name + note);
  }
}

/**
 * Creates an operand of attention: dense along the last axis, with any other strides. "reversed": a view of [B,S,H,D],
 * as a module creates it. "gapped": every other row of a larger tensor, with NaN between the rows.
 */
function stridedTensor(
  device: Device,
  values: ArrayLike<number>,
  { shape, dtype = "float32", storageOrder }: StridedOptions,
): Tensor {
  const tensor = storageOrder === "gapped" ? stridedRows(device, shape, dtype) : allocate(device, shape, { dtype });
  if (storageOrder === "reversed" && shape.length === 4) {
    tensor[Symbol.dispose]();
    return createHeadsFirst(device, values, shape, dtype);
  }
  device.write(tensor, values);
  return tensor;
}

interface StridedOptions extends TensorOptions {
  readonly shape: readonly number[];
}

function stridedRows(device: Device, shape: readonly number[], dtype: DType): Tensor {
  using rows = allocate(device, shape.with(2, 2 * shape[2]! + 1), { dtype });
  return rows.slice(2, 1, 2 * shape[2]! + 1, 2);
}

export function constantTensor(device: Device, value: number, options: StridedOptions): Tensor {
  return stridedTensor(device, new Float64Array(numel(options.shape)).fill(value), options);
}

/** Returns the values with all other rows set to 0, because absent queries contribute nothing to dk and dv. */
function maskRows(values: Float64Array, rows: readonly number[], size: { rows: number; width: number }): Float64Array {
  const keptRows = new Set(rows);
  return values.map((x, i) => (keptRows.has(Math.floor(i / size.width) % size.rows) ? x : 0));
}
