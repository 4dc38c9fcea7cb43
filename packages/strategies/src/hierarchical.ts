import { type Context, OptionError, defineOptions, option, type OptionsOf } from "@mosaic/core";
import { levelStrategyOption, nestBackends, type Strategy, createStrategy } from "./strategy.ts";

const hierarchicalAxesOptions = defineOptions("axes", {
  /** The mesh axis of nodes. Default "node". */
  node: option.string({ default: "node" }),
  /** The mesh axis of the ranks of a node. Default "gpu". */
  gpu: option.string({ default: "gpu" }),
});
export const hierarchicalOptions = defineOptions("hierarchical", {
  /** Number of ranks per node. These are neighbors, as the launcher numbers them. */
  intraNodeSize: option.integer({ min: 1, expected: "an integer number of ranks ≥ 1" }),
  /** Strategy between nodes. Default "ring". */
  interNodeStrategy: levelStrategyOption({ default: "ring" }),
  /** Strategy within each node; "local" gathers its keys, then attends locally. Default "ring". */
  intraNodeStrategy: levelStrategyOption({ default: "ring" }),
  /** Names of the mesh axes. Default: { node: "node", gpu: "gpu" }. */
  axes: option.nested(hierarchicalAxesOptions, { optional: true }),
});
/** Options of `hierarchical`. */
export type HierarchicalOptions = OptionsOf<typeof hierarchicalOptions>;

/**
 * Creates attention with one strategy between nodes and another within them; exact, forward and backward. It is one
 * backend nested in another. With "ring" and "ring", a node's keys pass around the ring of nodes, those of each rank
 * over its own rail, while the ranks of the node that holds them pass them among themselves.
 *
 * Between nodes, a rank communicates only with ranks of the same local rank, so that every link to a node is used by
 * one rank. The mesh must name the axis of a node's ranks last, because only then are they on one node.
 *
 * "ulysses" at either level runs once, outside the other: the ranks of a node exchange rows for heads, then each
 * attends across the nodes for its heads. A "mesh2d" computes on what it has gathered and cannot enclose another
 * level. It may be used within nodes, or between them if "ulysses" is within.
 *
 * Throws an OptionError for unknown or invalid options. On a mesh other than its own, creating a module with it and
 * every call throw an OptionError before anything is sent.
 *
 * @example
 * ```ts
 * import { hierarchical } from "@mosaic/strategies";
 * const strategy = hierarchical({ intraNodeSize: 8, interNodeStrategy: "ring", intraNodeStrategy: "ulysses" });
 * strategy.axes; // => ["node", "gpu"]
 * strategy.meshFor(32); // => { node: 4, gpu: 8 }
 * ```
 */
export function hierarchical(options: HierarchicalOptions): Strategy {
  const { intraNodeSize, interNodeStrategy, intraNodeStrategy, axes } = hierarchicalOptions.parse(options);
  const { node, gpu } = hierarchicalAxesOptions.parse(axes);
  const nestedBackend = nestBackends("hierarchical", [
    { axis: node, strategy: interNodeStrategy },
    { axis: gpu, strategy: intraNodeStrategy },
  ]);
  return createStrategy(nestedBackend, {
    name: "hierarchical",
    meshFor(ranks) {
      if (ranks > 0 && ranks % intraNodeSize === 0) return { [node]: ranks / intraNodeSize, [gpu]: intraNodeSize };
      throw new OptionError({
        where: "hierarchical",
        expected: `a multiple of ${intraNodeSize} ranks`,
        received: `${ranks} ranks`,
        remedy: "set intraNodeSize to the number of ranks per node",
      });
    },
    findMeshError: (ctx) => findGpuAxisError(ctx, gpu),
  });
}

/**
 * Returns what is wrong with the axis, if anything. Ranks are numbered node by node, so those of one node are
 * consecutive.
 */
function findGpuAxisError({ mesh }: Context, gpu: string): string | undefined {
  const { ranks, hosts } = mesh.group(gpu);
  if (hosts?.every((host) => host === hosts[0]) && new Set(mesh.hosts).size > 1) return undefined;
  if (ranks.every((rank, i) => rank === ranks[0]! + i)) return undefined;
  return `a mesh in which ${gpu} connects ranks ${ranks.join(", ")}, which are not consecutive ranks of one node`;
}
