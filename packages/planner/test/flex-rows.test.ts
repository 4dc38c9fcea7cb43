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

// The rows that flex moves are the required ones, exactly: counted in the record, beside a count pair by pair.

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

type Sees = (query: number, key: number) => boolean;

/** Σ over ranks of the rows of others that some query of theirs sees in some sample. */
function requiredRows({ queries, keys }: ReturnType<typeof record>, ranks: number, samples: readonly Sees[]): number {
  let rows = 0;
  for (let sp = 0; sp < ranks; sp++) {
    const own = [...positions(queries.spans({ sp }))];
    const isOwn = new Set(positions(keys.spans({ sp })));
    for (let k = 0; k < keys.length; k++) {
      if (!isOwn.has(k) && own.some((q) => samples.some((sees) => sees(q, k)))) rows++;
    }
  }
  return rows;
}

// oxlint-disable-next-line max-params -- what is recorded, on what, and what is right
function expectRequiredRows(
  name: string,
  { ranks, heads, stages, ...rest }: Sizes,
  call: Pick<RecordOptions, "tokens" | "keyTokens" | "mask" | "lengths" | "padding">,
  samples: readonly Sees[],
  isProved = true,
): void {
  const run = record({ backend: flex({ stages }), mesh: { sp: ranks }, ...heads, ...rest, ...call });
  if (isProved) expect(prove(run).violations, name).toEqual([]);
  const row = 2 * heads.batch * heads.numKvHeads * heads.headDim;
  const total = { forward: 0, backward: 0 };
  for (const { forward, backward } of count(run).ranks) {
    total.forward += forward.received.bytes;
    total.backward += backward.received.bytes;
  }
  const elements = row * requiredRows(run, ranks, samples);
  const bytes = dtypeBytes[rest.dtype];
  expect(total, name).toEqual({ forward: elements * bytes, backward: elements * (bytes + dtypeBytes.float32) });
}

const seesOf =
  (slices: ReturnType<Mask["slices"]>): Sees =>
  (q, k) =>
    slices.some((slice) => isPairVisible(slice, q, k));

test("of every kind of mask, on 1 to 8 ranks", () => {
  for (const { kind, ...chosen } of pairwise({ kind: Object.keys(maskKinds), ...sizes })) {
    const slices = maskKinds[kind]!;
    const call = { tokens: maskKindsLength, mask: masks.fromSlices([...slices]) };
    expectRequiredRows(`${kind}, ${chosen.placement.name}, ${chosen.ranks} ranks`, chosen, call, [seesOf(slices)]);
  }
});

test("of 200 random lists of slices of all types, queries and keys of different lengths", () => {
  const some = pairwise(sizes);
  for (let seed = 0; seed < 200; seed++) {
    const [tokens, keyTokens] = [11 + ((7 * seed) % 29), seed % 3 === 0 ? undefined : 5 + ((11 * seed) % 37)];
    const slices = randomSlices(tokens, keyTokens ?? tokens, 3000 + seed);
    const call = { tokens, keyTokens, mask: masks.fromSlices(slices) };
    expectRequiredRows(`random ${seed}`, some[seed % some.length]!, call, [seesOf(slices)], seed % 4 === 0);
  }
});

test("of samples of unequal lengths, each with a mask of its own, padded on either side", () => {
  const next = uniforms(5);
  const choices = pairwise({ ...sizes, padding: ["left", "right"], cross: [false, true] });
  for (const { padding, cross, ...chosen } of choices) {
    const [tokens, keyTokens] = [29, cross ? 37 : 29];
    const { batch } = chosen.heads;
    const queries = Array.from({ length: batch }, () => integer(next, tokens + 1));
    const keys = cross ? queries.map(() => integer(next, keyTokens + 1)) : queries;
    const drawn = queries.map((length, i) => randomSlices(length, keys[i]!, integer(next, 1e6)));
    const call = {
      ...{ tokens, keyTokens, padding, lengths: { queries, keys } },
      mask: drawn.map((slices) => masks.fromSlices(slices)),
    };
    const samples = drawn.map((slices, i): Sees => {
      const sees = seesOf(slices);
      const [q0, k0] = padding === "left" ? [tokens - queries[i]!, keyTokens - keys[i]!] : [0, 0];
      return (q, k) => sees(q - q0, k - k0);
    });
    const name = `${padding}, ${chosen.placement.name}, ${chosen.ranks} ranks, ${queries.join()} × ${keys.join()}`;
    expectRequiredRows(name, chosen, call, samples);
  }
});
