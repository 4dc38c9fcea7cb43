import { type AttentionBackend, checkOptionNames, type Coordinate, OptionError } from "@mosaic/core";
import { checkRanks, type LevelStrategy, nest, type Strategy, strategyOf } from "./strategy.ts";

export interface ComposedOptions {
  /** `head`: ranks that share the heads of a part of the sequence; `seq`: the parts of the sequence. */
  readonly meshShape: { readonly head: number; readonly seq: number };
  /** Whether heads are shared out; true if absent. If false, `head` must be 1. */
  readonly headParallel?: boolean;
  /** How ranks with the same heads reach each other's keys; "ring" if absent. */
  readonly seqParallel?: LevelStrategy;
  /** The mesh axes that are meant; "head" and "seq" if absent. */
  readonly axes?: { readonly head?: string; readonly seq?: string };
}

const legal = [
  "meshShape",
  "headParallel",
  "seqParallel",
  "axes",
] as const satisfies readonly (keyof ComposedOptions)[];

/**
 * Head-parallel times sequence-parallel attention: ranks along "head" exchange rows for heads, and ranks with the same heads
 * go on along "seq" in a ring, for example. Exact for any number of heads, forward and backward; it is `ulysses` around another
 * backend and nothing else. (With a ring: "USP", Fang and Zhao 2024.)
 *
 * Give the axis "head" the fastest links: name it last in the mesh, so that its ranks are neighbours.
 *
 * Throws an OptionError for options that do not exist or do not fit. On another mesh than its own, making a module with it
 * throws one, and so does every call, before anything is sent.
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
  const { meshShape, headParallel = true, seqParallel = "ring", axes: { head = "head", seq = "seq" } = {} } = options;
  checkOptionNames("composed", options, legal);
  checkOptionNames("composed: axes", options.axes ?? {}, ["head", "seq"]);
  checkShape(meshShape, headParallel);
  const { head: headRanks, seq: seqRanks } = meshShape;
  const along = { axis: seq, strategy: seqParallel };
  const mesh: Coordinate = headParallel ? { [seq]: seqRanks, [head]: headRanks } : { [seq]: seqRanks };
  const nested: AttentionBackend = nest(
    "composed: seqParallel",
    headParallel ? [{ axis: head, strategy: "ulysses" }, along] : [along],
  );
  return strategyOf(nested, {
    name: "composed",
    meshFor(ranks) {
      if (ranks === headRanks * seqRanks) return mesh;
      throw new OptionError({
        where: "composed",
        expected: `${headRanks * seqRanks} ranks, ${headRanks} for heads × ${seqRanks} for the sequence`,
        received: String(ranks),
        remedy: "change meshShape, or put other ranks on an axis of their own, dp",
      });
    },
  });
}

function checkShape(meshShape: unknown, headParallel: boolean): void {
  if (typeof meshShape !== "object" || meshShape === null || Array.isArray(meshShape)) {
    throw new OptionError({
      where: "composed: meshShape",
      expected: "{ head, seq }: ranks for heads, ranks for the sequence",
      received: JSON.stringify(meshShape),
    });
  }
  checkOptionNames("composed: meshShape", meshShape, ["head", "seq"]);
  const { head, seq } = meshShape as ComposedOptions["meshShape"];
  for (const length of [head, seq]) checkRanks("composed", "in meshShape", length);
  if (headParallel || head === 1) return;
  throw new OptionError({
    where: "composed",
    expected: "headParallel, or meshShape { head: 1, seq }",
    received: `headParallel false and meshShape { head: ${head}, seq: ${seq} }`,
    remedy: "ranks that shared neither heads nor the sequence would all do the same",
  });
}
