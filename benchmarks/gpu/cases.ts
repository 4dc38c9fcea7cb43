import { attentionCase, fewerLengths, shapesOf } from "./attention.ts";
import type { Case, Result } from "./bench.ts";
import { ceilingCases } from "./ceilings.ts";
import { gateCase } from "./gate.ts";
import type { Sizes } from "./problem.ts";
import { ringCases } from "./ring.ts";

/** All there is to measure, in the order in which it is. `kept` is looked into when a case runs. */
export function casesOf(lengths: readonly number[], sizes: Sizes, kept: ReadonlyMap<string, Result>): readonly Case[] {
  const shapes = shapesOf(lengths, fewerLengths);
  const kinds = new Map(shapes.map((shape) => [`${shape.dtype} ${shape.mask} ${shape.d}`, shape]));
  return [
    ...[...kinds.values()].map(gateCase),
    ...ceilingCases,
    ...shapes.map((shape) => attentionCase(shape, kept)),
    ...ringCases(sizes),
  ];
}
