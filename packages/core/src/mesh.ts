import type { ProcessGroup } from "./collectives/process-group.ts";
import { OptionError, ShapeError, expectValue, formatValue } from "./errors.ts";

/**
 * A coordinate in the mesh, of some or all axes: { node: 1, gpu: 3 }. Mesh axes are strings, tensor axes are numbers.
 */
export type Coordinate = Readonly<Record<string, number>>;

/**
 * The ranks arranged along named axes, row-major: the last axis varies fastest. Ranks are assigned to coordinates host
 * by host, so that inner axes stay within a host if the lengths allow it. With launchers that number ranks by host,
 * such as mosaic-run, this is ascending rank order.
 */
export interface DeviceMesh {
  /** Length of every axis, in order. */
  readonly shape: Coordinate;
  readonly axes: readonly string[];
  /** The coordinate of this rank. */
  readonly coordinate: Coordinate;
  /** All ranks. */
  readonly world: ProcessGroup;
  /** The host number of the rank at each coordinate, row-major. Absent if unknown. */
  readonly hosts?: readonly number[];
  /** Returns the group of the ranks whose coordinates differ from this rank's only along `axis`. */
  group(axis: string): ProcessGroup;
}

function checkLengths(where: string, lengths: unknown): void {
  const isObject = typeof lengths === "object" && lengths !== null;
  const areLengths = isObject && Object.values(lengths).every((length) => typeof length === "number");
  expectValue(where, areLengths, "axis lengths by name, such as { dp: 2, sp: 4 }", lengths);
}

/**
 * Returns the coordinate of a rank in a mesh of this shape, row-major: the last axis varies fastest.
 *
 * @example
 * ```ts
 * import { coordinateOf } from "@mosaic/core";
 * coordinateOf(5, { dp: 2, sp: 4 }); // => { dp: 1, sp: 1 }
 * ```
 * @throws OptionError for a rank outside of the mesh, or lengths that are not integers ≥ 1.
 */
export function coordinateOf(rank: number, shape: Coordinate): Coordinate {
  checkLengths("coordinateOf", shape);
  const lengths = Object.values(shape);
  const isValidMesh = lengths.every((length) => Number.isSafeInteger(length) && length >= 1);
  expectValue("coordinateOf: mesh", isValidMesh, "axis lengths that are integers ≥ 1", lengths);
  const size = lengths.reduce((product, length) => product * length, 1);
  const isValidRank = Number.isSafeInteger(rank) && rank >= 0 && rank < size;
  expectValue("coordinateOf", isValidRank, `a rank from 0 to ${size - 1}`, rank);
  const entries: [string, number][] = [];
  let remainder = rank;
  for (const [axis, length] of Object.entries(shape).reverse()) {
    entries.unshift([axis, remainder % length]);
    remainder = Math.floor(remainder / length);
  }
  return Object.fromEntries(entries);
}

/**
 * Returns the coordinate without some axes, which means all shards along them.
 *
 * @example
 * ```ts
 * import { omitAxes } from "@mosaic/core";
 * omitAxes({ node: 1, gpu: 3 }, ["gpu"]); // => { node: 1 }
 * ```
 * @throws OptionError unless `coordinate` maps axes to lengths and `axes` is an array.
 */
export function omitAxes(coordinate: Coordinate, axes: readonly string[]): Coordinate {
  checkLengths("omitAxes", coordinate);
  expectValue("omitAxes", Array.isArray(axes), "an array of axis names", axes);
  return Object.fromEntries(Object.entries(coordinate).filter(([axis]) => !axes.includes(axis)));
}

function checkMeshShape(shape: Coordinate, size: number): void {
  const lengths = Object.values(shape);
  const product = lengths.reduce((a, b) => a * b, 1);
  if (lengths.every((n) => Number.isInteger(n) && n > 0) && product === size) return;
  throw new ShapeError({
    where: "init",
    expected: `integer axis lengths ≥ 1 with product ${size}, the world size`,
    received: `${formatLengths(shape)} with product ${product}`,
    remedy: "correct the mesh, or start a different number of ranks",
  });
}

/** Formats axis lengths as JSON, but with NaN and infinities, which JSON would write as null. */
function formatLengths(lengths: Coordinate): string {
  return `{${Object.entries(lengths).map(([axis, length]) => `"${axis}":${length}`)}}`;
}

/** Creates the mesh with one group per axis. Collective. */
export async function createMesh(world: ProcessGroup, lengths: Coordinate): Promise<DeviceMesh> {
  expectValue(
    "createMesh",
    typeof (world as Partial<ProcessGroup> | null)?.split === "function",
    "a ProcessGroup",
    world,
  );
  checkLengths("init: mesh", lengths);
  const shape = { ...lengths };
  checkMeshShape(shape, world.size);
  const axes = Object.keys(shape);
  const ranks = rankOrder(world, shape);
  const coordinate = coordinateOf(ranks.indexOf(world.rank), shape);
  const { hosts } = world;
  const groups = new Map<string, ProcessGroup>();
  for (const axis of axes) {
    groups.set(axis, shape[axis] === world.size ? world : await world.split(groupColor(coordinate, shape, axis), axis));
  }
  return {
    shape,
    axes,
    coordinate,
    world,
    ...(hosts && { hosts: ranks.map((rank) => hosts[rank]!) }),
    group(axis) {
      const group = groups.get(axis);
      if (group) return group;
      throw new OptionError({
        where: "mesh.group",
        expected: `one of the axes ${axes.join(", ")}`,
        received: formatValue(axis),
        remedy: "add the axis to init({ mesh })",
      });
    },
  };
}

/**
 * Returns the rank at each coordinate, row-major: host by host if hosts are known. A group orders its members by rank,
 * which must match their order along the axis. If it would not match, or if hosts differ in size, returns the ranks in
 * ascending order.
 */
function rankOrder({ size, hosts }: ProcessGroup, shape: Coordinate): readonly number[] {
  const ranks = Array.from({ length: size }, (_, rank) => rank);
  if (!hosts || !hasEqualHostSizes(hosts)) return ranks;
  const ranksByHost = ranks.toSorted((a, b) => hosts[a]! - hosts[b]! || a - b);
  let stride = size;
  for (const length of Object.values(shape)) {
    stride /= length;
    const isOrderedByHost = ranksByHost.every(
      (rank, position) => Math.floor(position / stride) % length === 0 || ranksByHost[position - stride]! < rank,
    );
    if (!isOrderedByHost) return ranks;
  }
  return ranksByHost;
}

/** Returns whether all hosts have the same number of ranks. */
function hasEqualHostSizes(hosts: readonly number[]): boolean {
  const counts = new Map<number, number>();
  for (const host of hosts) counts.set(host, (counts.get(host) ?? 0) + 1);
  return new Set(counts.values()).size === 1;
}

/** Returns a color that ranks share if their coordinates agree on every other axis. */
function groupColor(coordinate: Coordinate, shape: Coordinate, axis: string): number {
  return Object.keys(shape).reduce(
    (color, each) => (each === axis ? color : color * shape[each]! + coordinate[each]!),
    0,
  );
}
