import { expect, test } from "vitest";
import { formatMask } from "../../src/mask/define.ts";
import * as masks from "../../src/mask/index.ts";
import type { Mask } from "../../src/mask/slice.ts";

const { and, blockCausal, causal, documents, fromCuSeqlens, fromSlices, globalTokens, or, shareQuestion } = masks;
const sliding = masks.slidingWindow;
const manyPositions = [0, 2, 4, 6, 8, 10, 12, 14, 16];

const cases: [mask: Mask, expression: string][] = [
  [masks.full(), "masks.full()"],
  [causal(), "masks.causal()"],
  [masks.prefix(3), "masks.prefix(3)"],
  [sliding({ left: 2 }), "masks.slidingWindow({ left: 2 })"],
  [documents([9, 11]), 'masks.documents([9, 11], "full")'],
  [documents([4, 4, 4, 8], blockCausal(2)), "masks.documents([4, 4, 4, 8], masks.blockCausal(2))"],
  [documents([...new Array<number>(4).fill(5)], "causal"), 'masks.documents([...Array(4).fill(5)], "causal")'],
  [documents([9, 11], ["causal", sliding(3)]), 'masks.documents([9, 11], ["causal", masks.slidingWindow(3)])'],
  [documents([10, 10], shareQuestion(4, [3, 3])), "masks.documents([10, 10], masks.shareQuestion(4, [3, 3]))"],
  [
    or(sliding(3), and(causal(), globalTokens(2))),
    "masks.or(masks.slidingWindow(3), masks.and(masks.causal(), masks.globalTokens(2)))",
  ],
  [
    globalTokens(manyPositions, { queries: true }),
    `masks.globalTokens([${manyPositions.join(", ")}], { queries: true })`,
  ],
  [fromCuSeqlens([0, 9, 20], null, { causal: true }), "masks.fromCuSeqlens([0, 9, 20], null, { causal: true })"],
  [fromCuSeqlens([0, 9, 20], [0, 4, 20], { left: 1 }), "masks.fromCuSeqlens([0, 9, 20], [0, 4, 20], { left: 1 })"],
  [
    fromSlices([{ q0: 0, q1: 4, k0: 0, k1: 2, type: "causal" }]),
    'masks.fromSlices([{ q0: 0, q1: 4, k0: 0, k1: 2, type: "causal" }])',
  ],
];

test.each(cases)("formatMask returns an expression that recreates $name", (mask, expression) => {
  expect(formatMask(mask)).toBe(expression);
  // oxlint-disable-next-line no-implied-eval, no-new-func -- what the expression makes is what counts
  const copy = new Function("masks", `return ${expression};`)(masks) as Mask;
  expect(copy.slices(20, 20)).toEqual(mask.slices(20, 20));
  expect(formatMask(mask, "mosaic.masks.")).toBe(expression.replaceAll("masks.", "mosaic.masks."));
});

test("formatMask returns undefined for custom, dense and very long masks, and for masks that contain them", () => {
  const custom: Mask = { ...causal(), name: "causal" };
  const longList = Array.from({ length: 5000 }, (_, i) => i % 2);
  for (const mask of [custom, masks.fromDense([[true]]), documents(longList)]) {
    expect(formatMask(mask)).toBeUndefined();
    expect(formatMask(and(causal(), mask))).toBeUndefined();
  }
  expect(formatMask(documents([1, 1], ["causal", custom]))).toBeUndefined();
});
