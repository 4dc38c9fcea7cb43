import { flex } from "@mosaic/backend-flex";
import {
  integer,
  isPairVisible,
  maskKinds,
  maskKindsLength,
  pairwise,
  placements,
  randomSlices,
  uniforms,
} from "@mosaic/conformance";
import { dtypeBytes, type Mask, masks, positions } from "@mosaic/core";
import { expect, test } from "vitest";
import { count, prove, record, type RecordOptions } from "../src/index.ts";

// The rows that flex moves are exactly the required ones: the record is compared with a count pair by pair.

const sizes = {
  ranks: [1, 2, 3, 4, 5, 6, 7, 8],
  placement: placements(),
  heads: [
    { numHeads: 2, numKvHeads: 2, headDim: 4, batch: 1 },
    { numHeads: 4, numKvHeads: 2, headDim: 4, batch: 2 },
    { numHeads: 3, numKvHeads: 1, headDim: 5, batch: 3 },
  ],
  stages: [undefined, 0, 1, { forward: 3, backward: 2 }],
  dtype: ["float32", "bfloat16"],
} as const;
type Sizes = { readonly [Name in keyof typeof sizes]: (typeof sizes)[Name][number] };

type VisibilityTest = (query: number, key: number) => boolean;

/** Returns the sum over ranks of the rows of other ranks that some of their queries attend to in some sample. */
function countRequiredRows(
  { queries, keys }: ReturnType<typeof record>,
  ranks: number,
  samples: readonly VisibilityTest[],
): number {
  let rows = 0;
  for (let sp = 0; sp < ranks; sp++) {
    const ownQueries = [...positions(queries.spans({ sp }))];
    const ownKeys = new Set(positions(keys.spans({ sp })));
    for (let k = 0; k < keys.length; k++) {
      if (!ownKeys.has(k) && ownQueries.some((q) => samples.some((sees) => sees(q, k)))) rows++;
    }
  }
  return rows;
}

// oxlint-disable-next-line max-params -- the case, its call, and what is visible
function expectRequiredRows(
  name: string,
  { ranks, heads, stages, ...recordSizes }: Sizes,
  call: Pick<RecordOptions, "tokens" | "keyTokens" | "mask" | "lengths" | "padding">,
  samples: readonly VisibilityTest[],
  shouldProve = true,
): void {
  const attentionRecord = record({ backend: flex({ stages }), mesh: { sp: ranks }, ...heads, ...recordSizes, ...call });
  if (shouldProve) expect(prove(attentionRecord).violations, name).toEqual([]);
  const elementsPerRow = 2 * heads.batch * heads.numKvHeads * heads.headDim;
  const total = { forward: 0, backward: 0 };
  for (const { forward, backward } of count(attentionRecord).ranks) {
    total.forward += forward.received.bytes;
    total.backward += backward.received.bytes;
  }
  const elements = elementsPerRow * countRequiredRows(attentionRecord, ranks, samples);
  const bytes = dtypeBytes[recordSizes.dtype];
  expect(total, name).toEqual({ forward: elements * bytes, backward: elements * (bytes + dtypeBytes.float32) });
}

const createVisibilityTest =
  (slices: ReturnType<Mask["slices"]>): VisibilityTest =>
  (q, k) =>
    slices.some((slice) => isPairVisible(slice, q, k));

test("flex moves exactly the required rows for every kind of mask, on 1 to 8 ranks", () => {
  for (const { kind, ...combination } of pairwise({ kind: Object.keys(maskKinds), ...sizes })) {
    const slices = maskKinds[kind]!;
    const call = { tokens: maskKindsLength, mask: masks.fromSlices([...slices]) };
    expectRequiredRows(`${kind}, ${combination.placement.name}, ${combination.ranks} ranks`, combination, call, [
      createVisibilityTest(slices),
    ]);
  }
});

test("flex moves exactly the required rows for 200 random lists of slices, with separate query and key lengths", () => {
  const combinations = pairwise(sizes);
  for (let seed = 0; seed < 200; seed++) {
    const [tokens, keyTokens] = [11 + ((7 * seed) % 29), seed % 3 === 0 ? undefined : 5 + ((11 * seed) % 37)];
    const slices = randomSlices(tokens, keyTokens ?? tokens, 3000 + seed);
    const call = { tokens, keyTokens, mask: masks.fromSlices(slices) };
    expectRequiredRows(
      `random ${seed}`,
      combinations[seed % combinations.length]!,
      call,
      [createVisibilityTest(slices)],
      seed % 4 === 0,
    );
  }
});

test("flex moves exactly the required rows for samples with different lengths, masks and padding", () => {
  const nextUniform = uniforms(5);
  const combinations = pairwise({ ...sizes, padding: ["left", "right"], cross: [false, true] });
  for (const { padding, cross, ...combination } of combinations) {
    const [tokens, keyTokens] = [29, cross ? 37 : 29];
    const { batch } = combination.heads;
    const queries = Array.from({ length: batch }, () => integer(nextUniform, tokens + 1));
    const keys = cross ? queries.map(() => integer(nextUniform, keyTokens + 1)) : queries;
    const sampleSlices = queries.map((length, i) => randomSlices(length, keys[i]!, integer(nextUniform, 1e6)));
    const call = {
      ...{ tokens, keyTokens, padding, lengths: { queries, keys } },
      mask: sampleSlices.map((slices) => masks.fromSlices(slices)),
    };
    const samples = sampleSlices.map((slices, i): VisibilityTest => {
      const isVisible = createVisibilityTest(slices);
      const [q0, k0] = padding === "left" ? [tokens - queries[i]!, keyTokens - keys[i]!] : [0, 0];
      return (q, k) => isVisible(q - q0, k - k0);
    });
    const name = `${padding}, ${combination.placement.name}, ${combination.ranks} ranks, ${queries.join()} × ${keys.join()}`;
    expectRequiredRows(name, combination, call, samples);
  }
});
