import { ShapeError, expectValue, formatValue } from "../errors.ts";
import type { Coordinate } from "../mesh.ts";
import { WeakCache } from "../weak-cache.ts";
import type { Layout, Placement } from "./placement.ts";
import type { Span } from "./span.ts";

// Backends, kernels and the ranks of a group rely on the contract of `Placement`. A violation would silently produce
// wrong results, so every placement is verified before anything is sent, once for each number of shards and length.

/**
 * Maximum number of cached results per placement: more than a program uses at a time, but bounded because a sequence
 * may grow with every call.
 */
export const MAX_CACHED_SHARDINGS = 64;

const verifiedShards = new WeakCache<Placement, string, readonly (readonly Span[])[]>(MAX_CACHED_SHARDINGS);
/** The mesh for which a layout was created. On another mesh, the same coordinates would hold different positions. */
const layoutMeshes = new WeakMap<Layout, Coordinate>();
/** The axis lengths for which a layout was verified, in the order of the layout's axes. */
const verifiedLengths = new WeakMap<Layout, (readonly number[])[]>();

/**
 * Returns the spans of every shard of a placement, after verifying that they are integers with start ≥ 0, length ≥ 0
 * and step ≥ 1, and that each position of the sequence is in exactly one shard, once. `placement.spans` is called once
 * for each shard, number of shards and length.
 *
 * @example
 * ```ts
 * import { contiguous, resolveShards } from "@mosaic/core";
 * resolveShards(contiguous(), 2, 5)[1]; // => [{ start: 3, length: 2, step: 1 }]
 * ```
 * @throws ShapeError that names a position that is in two shards, with these shards, or a position that is in none.
 */
export function resolveShards(placement: Placement, count: number, length: number): readonly (readonly Span[])[] {
  const spansMethod: unknown = (placement as Partial<Placement> | null)?.spans;
  const isPlacement = typeof spansMethod === "function" && typeof placement.name === "string";
  expectValue("resolveShards", isPlacement, "a Placement { name, spans }", placement);
  expectValue(
    "resolveShards",
    Number.isSafeInteger(count) && count >= 1 && count <= 2 ** 20,
    "1 to 2**20 shards",
    count,
  );
  expectValue("resolveShards", Number.isSafeInteger(length) && length >= 0, "a length ≥ 0", length);
  return verifiedShards.getOrCreate(placement, `${count},${length}`, () => {
    const shards = Array.from({ length: count }, (_, index) => placement.spans(index, count, length));
    verifyShards(`placement ${placement.name}`, shards, length);
    return shards;
  });
}

/**
 * Verifies that a layout's shards contain each position exactly once on this mesh. For a layout created by `layoutOf`,
 * compares the axis lengths with those of the mesh for which it was created. For any other layout, verifies its spans,
 * once for each mesh.
 */
export function verifyLayout(where: string, layout: Layout, mesh: Coordinate): void {
  const { axes } = layout;
  const verified = verifiedLengths.get(layout);
  if (verified?.some((lengths) => axes.every((axis, i) => lengths[i] === axisLength(mesh, axis)))) return;
  const layoutMesh = layoutMeshes.get(layout);
  if (layoutMesh) checkLayoutMesh(where, axes, { layoutMesh, mesh });
  else {
    const shards = coordinatesAlong(axes, mesh).map((coordinate) => layout.spans(coordinate));
    verifyShards(where, shards, layout.length);
  }
  const lengths = axes.map((axis) => axisLength(mesh, axis));
  if (verified) verified.push(lengths);
  else verifiedLengths.set(layout, [lengths]);
}

function checkLayoutMesh(
  where: string,
  axes: readonly string[],
  { layoutMesh, mesh }: { layoutMesh: Coordinate; mesh: Coordinate },
): void {
  if (axes.every((axis) => axisLength(layoutMesh, axis) === axisLength(mesh, axis))) return;
  const formatAxes = (shape: Coordinate): string =>
    axes.map((axis) => `${axis}: ${axisLength(shape, axis)}`).join(", ");
  throw new ShapeError({
    where,
    expected: `a layout for the context's mesh, { ${formatAxes(mesh)} }`,
    received: `a layout for a mesh { ${formatAxes(layoutMesh)} }`,
    remedy: "create it with layoutOf({ mesh: ctx.mesh.shape, … })",
  });
}

/** Returns the length of a mesh axis; 1 if the mesh does not have it. */
function axisLength(mesh: Coordinate, axis: string): number {
  return mesh[axis] ?? 1;
}

/** Returns all coordinates along some axes of a mesh, row-major. */
export function coordinatesAlong(axes: readonly string[], mesh: Coordinate): Coordinate[] {
  let coordinates: Coordinate[] = [{}];
  for (const axis of axes) {
    const values = Array.from({ length: axisLength(mesh, axis) }, (_, i) => i);
    coordinates = coordinates.flatMap((coordinate) => values.map((value) => ({ ...coordinate, [axis]: value })));
  }
  return coordinates;
}

/** Marks a layout as derived from verified placements, for this mesh only. */
export function markVerified(layout: Layout, mesh: Coordinate, placementName?: string): Layout {
  layoutMeshes.set(layout, mesh);
  if (placementName !== undefined) placementNames.set(layout, placementName);
  return layout;
}

/** Names of the placements of layouts, for error messages. */
const placementNames = new WeakMap<Layout, string>();

/** Returns the name of the placement that a layout applies; undefined for a layout that was not created from one. */
export function findPlacementName(layout: Layout): string | undefined {
  return placementNames.get(layout);
}

/** A span of one shard. */
interface ShardSpan extends Span {
  readonly shard: number;
}

function verifyShards(where: string, shards: readonly (readonly Span[])[], length: number): void {
  const shardSpans: ShardSpan[] = [];
  for (const [shard, spans] of shards.entries()) {
    if (!Array.isArray(spans)) {
      throw new ShapeError({
        where,
        expected: "an array of spans { start, length, step } for every shard",
        received: `${typeof spans} for shard ${shard}`,
      });
    }
    for (const span of spans as readonly Span[]) {
      verifySpan(`${where}, shard ${shard} of ${shards.length}`, span, length);
      if (span.length > 0) shardSpans.push({ ...span, shard });
    }
  }
  const duplicate = findDuplicate(shardSpans);
  if (duplicate) {
    const [a, b] = [Math.min(duplicate.a.shard, duplicate.b.shard), Math.max(duplicate.a.shard, duplicate.b.shard)];
    throw new ShapeError({
      where,
      expected: "every position in exactly one shard, once",
      received:
        a === b
          ? `position ${duplicate.position} twice in shard ${a}`
          : `position ${duplicate.position} in shards ${a} and ${b}`,
    });
  }
  const total = shardSpans.reduce((sum, span) => sum + span.length, 0);
  if (total === length) return;
  const missingPosition = firstMissingPosition(shardSpans, length);
  throw new ShapeError({
    where,
    expected: `shards that cover all ${length} positions`,
    received:
      missingPosition === undefined
        ? `${total} positions`
        : `${total} positions; position ${missingPosition} is in no shard`,
  });
}

/**
 * Verifies that a span has integers with start ≥ 0, length ≥ 0 and step ≥ 1, and ends within `length` positions.
 *
 * @throws ShapeError
 */
export function verifySpan(where: string, span: Span, length: number = Number.MAX_SAFE_INTEGER): void {
  expectValue(where, typeof span === "object" && span !== null, "spans { start, length, step }", span);
  const { start, length: count, step } = span;
  const areIntegers = Number.isSafeInteger(start) && Number.isSafeInteger(count) && Number.isSafeInteger(step);
  const isInBounds = count === 0 || start + (count - 1) * step < length;
  if (areIntegers && start >= 0 && count >= 0 && step >= 1 && isInBounds) return;
  throw new ShapeError({
    where,
    expected: `integer spans with start ≥ 0, length ≥ 0 and step ≥ 1${length < Number.MAX_SAFE_INTEGER ? ` that end before position ${length}` : ""}`,
    received: `start ${formatValue(start)}, length ${formatValue(count)}, step ${formatValue(step)}`,
  });
}

interface DuplicatePosition {
  readonly a: ShardSpan;
  readonly b: ShardSpan;
  /** A position that both spans contain. */
  readonly position: number;
}

/**
 * Returns two spans that share a position, if any. Spans with equal steps can overlap only within one residue class.
 * Spans with different steps are compared pairwise.
 */
function findDuplicate(spans: readonly ShardSpan[]): DuplicatePosition | undefined {
  const spansByStep = new Map<number, ShardSpan[]>();
  for (const span of spans) {
    // A span of a single position has no specific step.
    const step = span.length === 1 ? 1 : span.step;
    const sameStepSpans = spansByStep.get(step);
    if (sameStepSpans) sameStepSpans.push(span);
    else spansByStep.set(step, [span]);
  }
  for (const [step, sameStepSpans] of spansByStep) {
    sameStepSpans.sort((a, b) => (a.start % step) - (b.start % step) || a.start - b.start);
    for (let i = 1; i < sameStepSpans.length; i++) {
      const [a, b] = [sameStepSpans[i - 1]!, sameStepSpans[i]!];
      if (a.start % step === b.start % step && b.start <= lastPosition(a)) return { a, b, position: b.start };
    }
  }
  return spansByStep.size > 1 ? findDuplicateAcrossSteps(spans) : undefined;
}

/**
 * As `findDuplicate`, for spans of different steps. Compares each span, in order of starts, with those that have not
 * ended.
 */
function findDuplicateAcrossSteps(spans: readonly ShardSpan[]): DuplicatePosition | undefined {
  let openSpans: ShardSpan[] = [];
  for (const b of spans.toSorted((x, y) => x.start - y.start)) {
    openSpans = openSpans.filter((a) => lastPosition(a) >= b.start);
    for (const a of openSpans) {
      if (a.step === b.step && a.length > 1 && b.length > 1) continue;
      const commonPosition = firstCommonPosition(a, b);
      if (commonPosition !== undefined) return { a, b, position: commonPosition };
    }
    openSpans.push(b);
  }
  return undefined;
}

/**
 * Returns the first common position of two spans, where `b` does not start before `a`. Intersects two arithmetic
 * progressions by the extended Euclidean algorithm.
 */
function firstCommonPosition(a: Span, b: Span): number | undefined {
  const startDifference = b.start - a.start;
  let [gcd, remainder, factor, nextFactor] = [b.step, a.step, 1, 0];
  while (remainder > 0) {
    const quotient = Math.floor(gcd / remainder);
    [gcd, remainder] = [remainder, gcd - quotient * remainder];
    [factor, nextFactor] = [nextFactor, factor - quotient * nextFactor];
  }
  if (startDifference % gcd !== 0) return undefined;
  // b.step · factor ≡ gcd (mod a.step): the first j with b.start + j · b.step on a's progression.
  const period = BigInt(a.step / gcd);
  const j = (((BigInt(-startDifference / gcd) * BigInt(factor)) % period) + period) % period;
  const position = BigInt(b.start) + j * BigInt(b.step);
  return position <= BigInt(Math.min(lastPosition(a), lastPosition(b))) ? Number(position) : undefined;
}

function lastPosition({ start, length, step }: Span): number {
  return start + (length - 1) * step;
}

/** Maximum number of positions that are searched for a missing one. */
const MAX_SEARCHED_POSITIONS = 2 ** 20;

/**
 * Returns the first position that is in none of the spans, which are disjoint and do not cover all positions. Undefined
 * if it is beyond the searched positions.
 */
function firstMissingPosition(spans: readonly Span[], length: number): number | undefined {
  const end = Math.min(length, MAX_SEARCHED_POSITIONS);
  const isCovered = new Uint8Array(end);
  for (const { start, length: count, step } of spans) {
    const lastCoveredPosition = Math.min(end - 1, start + (count - 1) * step);
    if (step === 1) isCovered.fill(1, Math.min(start, end), lastCoveredPosition + 1);
    else for (let position = start; position <= lastCoveredPosition; position += step) isCovered[position] = 1;
  }
  const missingPosition = isCovered.indexOf(0);
  return missingPosition < 0 ? undefined : missingPosition;
}
