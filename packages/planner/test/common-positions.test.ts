import { positions, type Span } from "@mosaic/core";
import { expect, test } from "vitest";
import { commonPositions } from "../src/prove/positions.ts";

/** Numbers that are the same in every run. */
function randomIntegers(seed: number): (sides: number) => number {
  let state = seed;
  return (sides) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * sides);
  };
}

test("common positions are those that both spans have", () => {
  const roll = randomIntegers(2);
  const span = (): Span => ({ start: roll(12), length: roll(9), step: 1 + roll(6) });
  for (let trial = 0; trial < 2000; trial++) {
    const [a, b] = [span(), span()];
    const common = commonPositions(a, b);
    const expected = positions([a]).filter((each) => positions([b]).includes(each));
    expect(Array.from(common ? positions([common]) : []), JSON.stringify({ a, b })).toEqual(Array.from(expected));
  }
});
