import * as option from "../option.ts";
import { checkContext, checkTensor } from "../arguments.ts";
import { type AttentionBackend, type AttentionCall, checkBackend, type KvShard } from "../attention/backend.ts";
import type { AttentionState, QkvGrads, SavedRows } from "../attention/tile.ts";
import type { Context } from "../context.ts";
import { expectValue, DTypeError, OptionError, ShapeError } from "../errors.ts";
import type { Coordinate } from "../mesh.ts";
import type { Layout } from "../placement/placement.ts";
import { spansLength } from "../placement/span.ts";
import { formatShape, type Shape, sameShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";

// Every rank validates its arguments before it posts anything, because an error on one rank must not leave others
// waiting for a message. Inner backends also validate, but only when the first block has arrived, so that what does not
// depend on the block is checked by `AttentionBackend.check`.

/** Requirements of a backend on its calls. */
export interface ValidationRules {
  /** Name of the backend, shown in error messages: "ring". */
  readonly name: string;
  /** The mesh axis along which it communicates. */
  readonly axis: string;
  /** The backend that attends to each block, if it is not the backend itself. */
  readonly inner?: AttentionBackend;
  /** Axes that the sequences must be sharded along, in this order; `axis` alone if absent. */
  readonly axes?: readonly string[];
  /**
   * The sequences that must be sharded. If absent, only the keys: the queries may then be unsharded, the same on every
   * rank.
   */
  readonly sharded?: readonly ("queries" | "keys")[];
}

/** Checks of one backend's calls; each throws before anything is sent. */
export interface Validator {
  /**
   * Checks that the mesh has the axes and, if layouts are passed, that the sequences are sharded along them; then the
   * requirements of the inner backend, as `AttentionBackend.check` does. Throws OptionError.
   */
  context(ctx: Context, layouts?: Pick<AttentionCall, "queries" | "keys">): void;
  /**
   * Checks a forward: the context is open and no tensor is disposed; the mesh has the axes; the sequences are sharded
   * along them, and the shards are those of this rank; q, k and v have one dtype, matching shapes, and the number of
   * rows of their layouts; out [B,H,S,D] and lse [B,H,S] are float32. Throws OptionError, ShapeError, DTypeError,
   * DisposedError or ClosedError.
   */
  attend(ctx: Context, call: AttentionCall, state: AttentionState, kv: KvShard): void;
  /**
   * Checks a backward: the same, and also dOut, float32 lse and delta, and float32 dq, dk and dv with the shapes of q,
   * k and v.
   */
  attendBackward(ctx: Context, call: AttentionCall & SavedRows, grads: QkvGrads, kv: KvShard): void;
}

/**
 * Returns the checks of a backend that communicates. The backend calls `attend` or `attendBackward` first in every
 * call, on every rank.
 *
 * @throws OptionError immediately if the inner backend also uses the axis.
 *
 * @example
 * ```ts
 * import { local } from "@mosaic/core";
 * import { validator } from "@mosaic/core/context-parallel";
 * const validate = validator({ name: "ring", axis: "sp", inner: local(), sharded: ["queries", "keys"] });
 * typeof validate.attend; // => "function"
 * ```
 */
export function validator(rules: ValidationRules): Validator {
  return new CallValidator(rules);
}

class CallValidator implements Validator {
  readonly #rules: ValidationRules;
  readonly #label: string;

  constructor(rules: ValidationRules) {
    const { name, axis, inner } = rules ?? {};
    expectValue("validator", typeof name === "string" && typeof axis === "string", "rules { name, axis }", rules);
    if (inner !== undefined) checkBackend("validator: inner", inner);
    this.#rules = rules;
    this.#label = `${name}(${axis})`;
    if (!inner?.axes.includes(axis)) return;
    throw new OptionError({
      where: this.#label,
      expected: "an inner backend along a different axis",
      received: `${inner.name} along ${inner.axes.join(", ")}`,
      remedy: "use a separate mesh axis for each level of nesting",
    });
  }

  context(ctx: Context, layouts?: Pick<AttentionCall, "queries" | "keys">): void {
    checkContext(this.#label, ctx);
    const { sharded = ["keys"], inner } = this.#rules;
    const where = `${this.#label}, rank ${ctx.rank}`;
    this.#checkMesh(where, ctx);
    for (const name of layouts ? sharded : []) {
      expectValue(where, isLayout(layouts![name]), `layouts { queries, keys } with a Layout of the ${name}`, layouts);
      this.#checkShardAxes(where, name, layouts![name]);
    }
    inner?.check?.(ctx, layouts);
  }

  attend(ctx: Context, call: AttentionCall, state: AttentionState, kv: KvShard): void {
    checkContext(this.#label, ctx);
    const { out, lse } = state ?? {};
    const where = `${this.#label}, rank ${ctx.rank}`;
    this.#checkCall(where, ctx, call, kv);
    checkAccumulator(where, {
      name: "out",
      x: out,
      referenceName: resultReferenceName(call.q, kv.v),
      reference: resultShape(call.q, kv.v),
    });
    checkRowStatistic(where, "lse", lse, call.q);
  }

  attendBackward(ctx: Context, call: AttentionCall & SavedRows, grads: QkvGrads, kv: KvShard): void {
    checkContext(this.#label, ctx);
    const { dq, dk, dv } = grads ?? {};
    const where = `${this.#label} backward, rank ${ctx.rank}`;
    this.#checkCall(where, ctx, call, kv);
    const { q, dOut, lse, delta } = call;
    checkSameShape(where, {
      name: "dOut",
      x: dOut,
      referenceName: resultReferenceName(q, kv.v),
      reference: resultShape(q, kv.v),
    });
    checkRowStatistic(where, "lse", lse, q);
    checkRowStatistic(where, "delta", delta, q);
    checkAccumulator(where, { name: "dq", x: dq, referenceName: "q", reference: q });
    checkAccumulator(where, { name: "dk", x: dk, referenceName: "k", reference: kv.k });
    checkAccumulator(where, { name: "dv", x: dv, referenceName: "v", reference: kv.v });
  }

  #checkCall(where: string, ctx: Context, call: AttentionCall, kv: KvShard): void {
    const { q, at, queries, keys, mask, scale } = call ?? {};
    const { k, v, from } = kv ?? {};
    const { sharded = ["keys"] } = this.#rules;
    for (const x of [q, k, v]) checkTensor(where, x);
    for (const coordinate of [at, from]) expectValue(where, isCoordinate(coordinate), "a coordinate", coordinate);
    for (const layout of [queries, keys]) expectValue(where, isLayout(layout), "a Layout", layout);
    expectValue(`${where}: scale`, typeof scale === "number", "a number", scale);
    expectValue(where, Array.isArray(mask), "an array of slices", mask);
    this.#checkMesh(where, ctx);
    if (sharded.includes("queries")) this.#checkSequence(where, ctx, { name: "queries", layout: queries, at });
    if (sharded.includes("keys")) this.#checkSequence(where, ctx, { name: "keys", layout: keys, at: from });
    checkRows(where, { name: "queries", x: q, layout: queries, at });
    checkRows(where, { name: "keys", x: k, layout: keys, at: from });
    checkHeads(where, { q, k, v });
  }

  #checkMesh(where: string, { mesh }: Context): void {
    const { name, axis, axes = [axis] } = this.#rules;
    const unknownAxis = axes.find((each) => !mesh.axes.includes(each));
    if (unknownAxis === undefined) return;
    throw new OptionError({
      where,
      expected: `one of the mesh's axes ${mesh.axes.join(", ")}`,
      received: `"${unknownAxis}"`,
      remedy: `add the axis to init({ mesh }), or set ${name}({ axis })`,
    });
  }

  /**
   * Checks that a sequence is sharded along all axes, in their order, because rows are concatenated along the last axis
   * first.
   */
  #checkShardAxes(where: string, name: "queries" | "keys", layout: Layout): void {
    const { axis, axes = [axis] } = this.#rules;
    const shardAxes = layout.axes.filter((each) => axes.includes(each));
    if (shardAxes.length === axes.length && axes.every((each, i) => each === shardAxes[i])) return;
    throw new OptionError({
      where,
      expected: `${name} sharded along ${axes.join(", ")}${axes.length > 1 ? ", in this order" : ""}`,
      received: layout.axes.length > 0 ? `${name} sharded along ${layout.axes.join(", ")}` : `unsharded ${name}`,
      remedy: "shard with a layout along backend.axes; otherwise (query, key) pairs are counted more than once",
    });
  }

  /** Checks that a sequence is sharded along all axes, and that the shard is that of this rank. */
  #checkSequence(where: string, { mesh }: Context, { name, layout, at }: ShardedSequence): void {
    this.#checkShardAxes(where, name, layout);
    const { axis } = this.#rules;
    const meshCoordinate = mesh.coordinate[axis];
    if (at[axis] === meshCoordinate) return;
    throw new OptionError({
      where,
      expected: `this rank's shard of the ${name}, ${axis} = ${meshCoordinate}`,
      received: `${name} from ${JSON.stringify(at)}`,
      remedy: "use each mesh axis in one backend only: another backend already gathers along it",
    });
  }
}

const isCoordinate = option.meshShape().accepts;

const isLayout = (value: unknown): boolean =>
  typeof (value as Partial<Layout> | null)?.spans === "function" && Array.isArray((value as Layout).axes);

interface ShardedSequence {
  readonly name: "queries" | "keys";
  readonly layout: Layout;
  readonly at: Coordinate;
}

/** Checks that x [B,H,S,D] has the number of rows of its layout. */
function checkRows(where: string, { name, x, layout, at }: ShardedSequence & { readonly x: Tensor }): void {
  const length = spansLength(layout.spans(at));
  if (x.rank === 4 && x.shape[2] === length) return;
  throw new ShapeError({
    where,
    expected: `${name} [B,H,${length},D], as specified by their layout`,
    received: formatShape(x.shape),
    remedy: "create the layout with the placement and the length that the sequence was sharded with",
  });
}

/**
 * Checks that q, k and v have matching shapes, because a rank derives the sizes of other ranks' blocks from its own
 * shapes.
 */
function checkHeads(where: string, { q, k, v }: Record<"q" | "k" | "v", Tensor>): void {
  const [batch, heads, , headDim] = q.shape;
  if (k.shape[0] !== batch || k.shape[3] !== headDim || heads! % k.shape[1]! !== 0) {
    throw new ShapeError({
      where,
      expected: `keys [${batch},Hkv,S,${headDim}] with Hkv a divisor of the ${heads} query heads`,
      received: formatShape(k.shape),
      remedy: "reshape q to [B,H,S,D] and k to [B,Hkv,S,D], with the same B and D, and H divisible by Hkv",
    });
  }
  const valuesReference = { shape: k.shape.with(3, v.rank === 4 ? v.shape[3]! : k.shape[3]!) };
  checkSameShape(where, {
    name: "values of the keys' shape",
    x: v,
    referenceName: "k, except for the head size",
    reference: valuesReference,
  });
  for (const [name, { dtype }] of [["values", v] as const, ["queries", q] as const]) {
    if (dtype === k.dtype) continue;
    throw new DTypeError({
      where,
      expected: `${name} with the dtype of the keys, ${k.dtype}`,
      received: dtype,
      remedy: "convert with to(dtype)",
    });
  }
}

/** Returns the shape of out and dOut: the rows of the queries with the head size of the values. */
function resultShape({ shape }: Tensor, v: Tensor): Pick<Tensor, "shape"> {
  return { shape: shape.with(3, v.shape[3]!) };
}

function resultReferenceName({ shape }: Tensor, v: Tensor): string {
  return shape[3] === v.shape[3] ? "q" : "q, with the head size of v";
}

/** A tensor, and the reference whose shape it must have. */
interface ShapeExpectation {
  readonly name: string;
  readonly x: Tensor;
  readonly referenceName: string;
  readonly reference: Pick<Tensor, "shape">;
}

function checkSameShape(where: string, { name, x, referenceName, reference }: ShapeExpectation): void {
  checkTensor(where, x);
  if (!sameShape(x.shape, reference.shape)) throw shapeError(where, { name, x, referenceName, shape: reference.shape });
}

/** Checks shape and dtype of an accumulator. It is float32, because it is rounded only once, at the end. */
function checkAccumulator(where: string, expectation: ShapeExpectation): void {
  checkSameShape(where, expectation);
  checkFloat32(where, expectation.name, expectation.x);
}

/** Checks that x is float32 [B,H,S], with one value per query and head. */
function checkRowStatistic(where: string, name: string, x: Tensor, { shape: [batch, heads, rows] }: Tensor): void {
  checkTensor(where, x);
  const { shape } = x;
  if (shape.length !== 3 || shape[0] !== batch || shape[1] !== heads || shape[2] !== rows) {
    throw shapeError(where, { name, x, referenceName: "q without the last axis", shape: [batch!, heads!, rows!] });
  }
  checkFloat32(where, name, x);
}

function checkFloat32(where: string, name: string, { dtype }: Tensor): void {
  if (dtype === "float32") return;
  throw new DTypeError({
    where,
    expected: `${name} of dtype float32`,
    received: dtype,
    remedy: "accumulate in float32, and round once at the end",
  });
}

function shapeError(
  where: string,
  { name, x, referenceName, shape }: Omit<ShapeExpectation, "reference"> & { readonly shape: Shape },
): ShapeError {
  return new ShapeError({
    where,
    expected: `${name} ${formatShape(shape)}`,
    received: formatShape(x.shape),
    remedy: `use the shape of ${referenceName}`,
  });
}
