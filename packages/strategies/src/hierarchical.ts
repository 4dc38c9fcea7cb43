import { type Context, OptionError, defineOptions, option, type OptionsOf } from "@mosaic/core";
import { levelStrategyOption, nestBackends, type Strategy, createStrategy } from "./strategy.ts";

const hierarchicalAxesOptions = defineOptions("axes", {
  /** The mesh axis of nodes. Default "node". */
  node: option.string({ default: "node" }),
  /** The mesh axis of the ranks of a node. Default "gpu". */
  gpu: option.string({ default: "gpu" }),
});
export const hierarchicalOptions = defineOptions("hierarchical", {
  /** Ranks of one node: neighbours, as the launcher numbers them. */
  intraNodeSize: option.integer({ min: 1, expected: "an integer number of ranks ≥ 1" }),
  /** What is done between nodes. Default "ring". */
  interNodeStrategy: levelStrategyOption({ default: "ring" }),
  /** What is done within each node; "local" gathers its keys, then attends locally. Default "ring". */
  intraNodeStrategy: levelStrategyOption({ default: "ring" }),
  /** The mesh axes that are meant. Default: { node: "node", gpu: "gpu" }. */
  axes: option.nested(hierarchicalAxesOptions, { optional: true }),
});
/** What `hierarchical` takes. */
export type HierarchicalOptions = OptionsOf<typeof hierarchicalOptions>;

/**
 * One way to attend between nodes, another within them; exact, forward and backward. It is one backend nested in another
 * and nothing else: with "ring" and "ring", a node's keys go around the ring of nodes, each rank's by its own rail, while
 * the ranks of the node they are at pass them among themselves.
 *
 * Between nodes a rank communicates only with those of the same place in theirs, so that every link to a node is used by one rank.
 * The mesh must name the node's axis last: only then are its ranks on one node.
 *
 * "ulysses" at either level is done once, outside the other: the ranks of a node exchange rows for heads, then each goes
 * around the nodes for its heads. A "mesh2d" computes on what it has gathered and cannot go around another level: it may be
 * within nodes, or between them if "ulysses" is within.
 *
 * Throws an OptionError for options that do not exist or do not fit. On another mesh than its own, making a module with it
 * throws one, and so does every call, before anything is sent.
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

/** Ranks are numbered node by node: those of one node follow one another. */
function findGpuAxisError({ mesh }: Context, gpu: string): string | undefined {
  const { ranks, hosts } = mesh.group(gpu);
  if (hosts?.every((host) => host === hosts[0]) && new Set(mesh.hosts).size > 1) return undefined;
  if (ranks.every((rank, i) => rank === ranks[0]! + i)) return undefined;
  return `a mesh in which ${gpu} connects ranks ${ranks.join(", ")}, which are not consecutive ranks of one node`;
}
