import { positions, type Span } from "@mosaic/core";
import { expect, test } from "vitest";
import { commonPositions } from "../src/prove/positions.ts";

/** Returns pseudo-random integers that are the same in every run. */
function createRandomInteger(seed: number): (bound: number) => number {
  let state = seed;
  return (bound) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * bound);
  };
}

test("commonPositions returns the positions that both spans contain", () => {
  const randomInteger = createRandomInteger(2);
  const randomSpan = (): Span => ({ start: randomInteger(12), length: randomInteger(9), step: 1 + randomInteger(6) });
  for (let trial = 0; trial < 2000; trial++) {
    const [a, b] = [randomSpan(), randomSpan()];
    const commonSpan = commonPositions(a, b);
    const expected = positions([a]).filter((each) => positions([b]).includes(each));
    expect(Array.from(commonSpan ? positions([commonSpan]) : []), JSON.stringify({ a, b })).toEqual(
      Array.from(expected),
    );
  }
});
