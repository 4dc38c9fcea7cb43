import { positions, type Slice, type SliceType, slantsLeft, slantsRight, type Span } from "@mosaic/core";
import { expect, test } from "vitest";
import { commonPositions, visiblePairs } from "../src/prove/area.ts";

const sliceTypes: readonly SliceType[] = ["full", "causal", "inverseCausal", "bidirectionalCausal"];

/** Numbers that are the same in every run. */
function dice(seed: number): (sides: number) => number {
  let state = seed;
  return (sides) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * sides);
  };
}

function sees({ q0, q1, k0, k1, type }: Slice, q: number, k: number): boolean {
  return (
    q >= q0 && q < q1 && k >= k0 + (slantsLeft(type) ? q - q0 : 0) && k < k1 - (slantsRight(type) ? q1 - 1 - q : 0)
  );
}

test("visible pairs are as many as one counts one by one", () => {
  const roll = dice(1);
  const span = (): Span => ({ start: roll(12), length: roll(9), step: 1 + roll(4) });
  let seen = 0;
  for (let trial = 0; trial < 4000; trial++) {
    const [q, k] = [span(), span()];
    const [q0, k0] = [roll(20), roll(20)];
    const slice: Slice = { q0, q1: q0 + roll(20), k0, k1: k0 + roll(20), type: sliceTypes[roll(4)]! };
    let pairs = 0;
    for (const row of positions([q])) for (const key of positions([k])) if (sees(slice, row, key)) pairs++;
    expect(visiblePairs([q], [k], [slice]), JSON.stringify({ q, k, slice })).toBe(pairs);
    seen += pairs;
  }
  expect(seen).toBeGreaterThan(1000);
});

test("common positions are those that both spans have", () => {
  const roll = dice(2);
  const span = (): Span => ({ start: roll(12), length: roll(9), step: 1 + roll(6) });
  for (let trial = 0; trial < 2000; trial++) {
    const [a, b] = [span(), span()];
    const common = commonPositions(a, b);
    const expected = positions([a]).filter((each) => positions([b]).includes(each));
    expect(Array.from(common ? positions([common]) : []), JSON.stringify({ a, b })).toEqual(Array.from(expected));
  }
});
