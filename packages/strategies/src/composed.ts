import {
  type AttentionBackend,
  type Coordinate,
  OptionError,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { levelStrategyOption, nestBackends, type Strategy, createStrategy } from "./strategy.ts";

const composedMeshOptions = defineOptions("meshShape", {
  /** Number of ranks that split the heads of a part of the sequence. */
  head: option.integer({ min: 1, expected: "an integer number of ranks ≥ 1" }),
  /** Number of parts of the sequence. */
  seq: option.integer({ min: 1, expected: "an integer number of ranks ≥ 1" }),
});
const composedAxesOptions = defineOptions("axes", {
  /** The mesh axis of ranks that share heads. Default "head". */
  head: option.string({ default: "head" }),
  /** The mesh axis of the parts of the sequence. Default "seq". */
  seq: option.string({ default: "seq" }),
});
export const composedOptions = defineOptions("composed", {
  /** Numbers of ranks: `head` ranks split the heads of each part of the sequence; `seq` is the number of parts. */
  meshShape: option.nested(composedMeshOptions, {
    expected: "{ head, seq }, the number of ranks for heads and for the sequence",
  }),
  /** Whether heads are split among ranks; if not, `head` must be 1. Default true. */
  headParallel: option.boolean({ default: true }),
  /** Strategy by which ranks with the same heads attend to each other's keys. Default "ring". */
  seqParallel: levelStrategyOption({ default: "ring" }),
  /** Names of the mesh axes. Default: { head: "head", seq: "seq" }. */
  axes: option.nested(composedAxesOptions, { optional: true }),
});
/** Options of `composed`. */
export type ComposedOptions = OptionsOf<typeof composedOptions>;

/**
 * Creates head-parallel times sequence-parallel attention: ranks along "head" exchange rows for heads, and ranks with
 * the same heads then work along "seq", for example in a ring. Exact for any number of heads, forward and backward.
 * It is `ulysses` around another backend. (With a ring: "USP", Fang and Zhao 2024.)
 *
 * The axis "head" should have the fastest links: name it last in the mesh, so that its ranks are neighbors.
 *
 * Throws an OptionError for unknown or invalid options. On a mesh other than its own, creating a module with it and
 * every call throw an OptionError before anything is sent.
 *
 * @example
 * ```ts
 * import { composed } from "@mosaic/strategies";
 * const strategy = composed({ meshShape: { head: 2, seq: 4 }, seqParallel: "ring" });
 * strategy.axes; // => ["seq", "head"]
 * strategy.meshFor(8); // => { seq: 4, head: 2 }
 * ```
 */
export function composed(options: ComposedOptions): Strategy {
  const { meshShape, headParallel, seqParallel, axes } = composedOptions.parse(options);
  const { head, seq } = composedAxesOptions.parse(axes);
  const { head: headRanks, seq: seqRanks } = meshShape;
  checkShape(meshShape, headParallel);
  const sequenceLevel = { axis: seq, strategy: seqParallel };
  const mesh: Coordinate = headParallel ? { [seq]: seqRanks, [head]: headRanks } : { [seq]: seqRanks };
  const nestedBackend: AttentionBackend = nestBackends(
    "composed: seqParallel",
    headParallel ? [{ axis: head, strategy: "ulysses" }, sequenceLevel] : [sequenceLevel],
  );
  return createStrategy(nestedBackend, {
    name: "composed",
    meshFor(ranks) {
      if (ranks === headRanks * seqRanks) return mesh;
      throw new OptionError({
        where: "composed",
        expected: `${headRanks * seqRanks} ranks, ${headRanks} for heads × ${seqRanks} for the sequence`,
        received: String(ranks),
        remedy: "change meshShape, or put the other ranks on a data-parallel axis, dp",
      });
    },
  });
}

function checkShape({ head, seq }: ComposedOptions["meshShape"], headParallel: boolean): void {
  if (headParallel || head === 1) return;
  throw new OptionError({
    where: "composed",
    expected: "headParallel true, or meshShape { head: 1, seq }",
    received: `headParallel false and meshShape { head: ${head}, seq: ${seq} }`,
    remedy: "set headParallel, or meshShape { head: 1, seq }; otherwise all ranks compute the same heads",
  });
}
