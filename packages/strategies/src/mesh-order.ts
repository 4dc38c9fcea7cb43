// Determines which mesh axes stay within a host, and the cost if the wrong ones do not.

import { type AttentionBackend, type AttentionCall, type Context, type Coordinate, coordinateOf } from "@mosaic/core";
import type { KvShard, Layout, Mask, Placement, Slice } from "@mosaic/core";
import type { RecordOptions } from "@mosaic/planner";

/** Formats a mesh as in source code: "{ seq: 4, head: 2 }". */
export function formatMesh(mesh: Coordinate): string {
  const entries = Object.entries(mesh).map(([axis, length]) => `${axis}: ${length}`);
  return `{ ${entries.join(", ")} }`;
}

/** The parts of a strategy that the order of its axes concerns. */
interface OrderedStrategy {
  readonly name: string;
  readonly nested: AttentionBackend;
  /** The axis that should stay within a host. */
  readonly innerAxis: string;
}

const checkedContexts = new WeakSet<Context>();

/**
 * Warns, once per context and only on rank 0, if the inner axis crosses hosts and another order of the mesh's axes
 * would send fewer bytes between hosts in this call. The planner counts these bytes after the call, and is only then
 * loaded.
 */
export function warnIfAxisCrossesHosts(
  ctx: Context,
  call: AttentionCall,
  kv: KvShard,
  strategy: OrderedStrategy,
): void {
  if (checkedContexts.has(ctx)) return;
  checkedContexts.add(ctx);
  const { hosts, shape } = ctx.mesh;
  if (ctx.rank !== 0 || !hosts || !crossesHosts(hosts, shape, strategy.innerAxis)) return;
  const options = createRecordOptions(ctx, call, kv, strategy.nested);
  void warnAboutTraffic(hosts, options, strategy);
}

/** Whether neighbors along an axis are on different hosts. `hosts` is by place, row-major. */
export function crossesHosts(hosts: readonly number[], shape: Coordinate, axis: string): boolean {
  const axes = Object.keys(shape);
  const innerAxes = axes.slice(axes.indexOf(axis) + 1);
  const length = shape[axis]!;
  const stride = innerAxes.reduce((product, each) => product * shape[each]!, 1);
  const isFirstAlongAxis = (position: number): boolean => Math.floor(position / stride) % length === 0;
  return hosts.some((host, position) => !isFirstAlongAxis(position) && host !== hosts[position - stride]);
}

/** Returns the call as the planner records it. It does not keep tensors. */
function createRecordOptions(ctx: Context, call: AttentionCall, kv: KvShard, backend: AttentionBackend): RecordOptions {
  const { queries, keys, mask, modifiers, q } = call;
  const [batch, numHeads, , headDim] = q.shape as readonly [number, number, number, number];
  const { shape } = ctx.mesh;
  return {
    ...{ backend, mesh: shape, tokens: queries.length, keyTokens: keys.length, numHeads, headDim, batch },
    ...{ numKvHeads: kv.k.shape[1]!, valueHeadDim: kv.v.shape[3]!, dtype: q.dtype },
    mask: modifiers?.sampleMasks?.map(createSliceMask) ?? createSliceMask(mask),
    placement: createLayoutPlacement([queries, keys], shape),
  };
}

function createSliceMask(slices: readonly Slice[]): Mask {
  return { name: "of the call", slices: () => slices };
}

/** Returns the placement from which these layouts were made. */
function createLayoutPlacement(layouts: readonly Layout[], mesh: Coordinate): Placement {
  return {
    name: "of the call",
    spans(index, _, length) {
      const { axes, spans } = layouts.find((each) => each.length === length)!;
      const lengths = Object.fromEntries(axes.map((axis) => [axis, mesh[axis]!]));
      return spans(coordinateOf(index, lengths));
    },
  };
}

async function warnAboutTraffic(
  hosts: readonly number[],
  options: RecordOptions,
  strategy: OrderedStrategy,
): Promise<void> {
  const { name, innerAxis } = strategy;
  const where = `${name}: the axis "${innerAxis}" crosses hosts in the mesh ${formatMesh(options.mesh)}`;
  try {
    const { countHostTraffic, formatBytes } = await import("@mosaic/planner");
    const orders = permutations(Object.keys(options.mesh));
    const arrangements = orders.map((axes) => arrangeHosts(hosts, options.mesh, axes));
    const [meshTraffic, ...alternativeTraffic] = countHostTraffic(options, [hosts, ...arrangements]);
    const totalBytes = alternativeTraffic.map(({ forward, backward }) => forward + backward);
    const bestIndex = totalBytes.indexOf(Math.min(...totalBytes));
    if (totalBytes[bestIndex]! >= meshTraffic!.forward + meshTraffic!.backward) return;
    const mesh = formatMesh(Object.fromEntries(orders[bestIndex]!.map((axis) => [axis, options.mesh[axis]!])));
    const { forward, backward } = alternativeTraffic[bestIndex]!;
    emitWarning(
      `${where}: in this attention call, the host of rank 0 sends ${formatBytes(meshTraffic!.forward)} to other hosts in the forward and ` +
        `${formatBytes(meshTraffic!.backward)} in the backward; with the mesh ${mesh} it sends ${formatBytes(forward)} and ${formatBytes(backward)}; ` +
        `pass init({ mesh: ${mesh} })`,
    );
  } catch (error) {
    emitWarning(`${where}; its traffic between hosts could not be counted: ${(error as Error).message}`);
  }
}

function emitWarning(message: string): void {
  process.emitWarning(message, { type: "MosaicWarning", code: "MOSAIC_MESH_ORDER" });
}

/** Returns the host of each place of `mesh` if its axes were named in this order. Places are assigned host by host. */
function arrangeHosts(hosts: readonly number[], mesh: Coordinate, axes: readonly string[]): readonly number[] {
  const sortedHosts = hosts.toSorted((a, b) => a - b);
  return hosts.map((_, position) => {
    const coordinate = coordinateOf(position, mesh);
    return sortedHosts[axes.reduce((index, axis) => index * mesh[axis]! + coordinate[axis]!, 0)]!;
  });
}

function permutations(items: readonly string[]): readonly (readonly string[])[] {
  if (items.length < 2) return [items];
  return items.flatMap((firstItem) =>
    permutations(items.filter((each) => each !== firstItem)).map((remainingItems) => [firstItem, ...remainingItems]),
  );
}
