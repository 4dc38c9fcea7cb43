import { contiguous, type Placement, striped, zigzag } from "@mosaic/core";
import { integer, uniforms } from "../oracle/numbers.ts";

/** Shards that grow from nothing: the first are empty as soon as there are many, and no two are equal. */
function ragged(): Placement {
  return {
    name: "ragged",
    spans(index, count, length) {
      const cut = (i: number) => Math.floor(length * (i / count) ** 2);
      return [{ start: cut(index), length: cut(index + 1) - cut(index), step: 1 }];
    },
  };
}

/** Pieces of three positions dealt out at random, as a solver might: a shard is many spans, in no order. */
function scattered(): Placement {
  return {
    name: "scattered",
    spans(index, count, length) {
      const next = uniforms(length);
      const spans = [];
      for (let start = 0; start < length; start += 3) {
        if (integer(next, count) === index) spans.unshift({ start, length: Math.min(3, length - start), step: 1 });
      }
      return spans;
    },
  };
}

/** Core's placements, and two that are as irregular as the rules allow. */
export function placements(): Placement[] {
  return [contiguous(), zigzag(), striped(), ragged(), scattered()];
}
