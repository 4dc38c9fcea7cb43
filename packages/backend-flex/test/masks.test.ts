import {
  checkMeasurements,
  isPairVisible,
  slicesToMaskMod,
  measureOn,
  onWorld,
  placements,
  randomSlices,
  type Trial,
} from "@mosaic/conformance";
import { masks, type Slice, type SliceType } from "@mosaic/core";
import { expect, test } from "vitest";
import { flex } from "../src/index.ts";
import { makeWorld } from "./world.ts";

const LENGTH = 61;

const slice = (type: SliceType, [q0, q1]: readonly [number, number], [k0, k1]: readonly [number, number]): Slice => ({
  q0,
  q1,
  k0,
  k1,
  type,
});

/** Documents of 3, 20, 1, 30 and 7 tokens. */
const documents: readonly (readonly [number, number])[] = [
  [0, 3],
  [3, 23],
  [23, 24],
  [24, 54],
  [54, 61],
];

/** Blocks of 8: a query sees its own block and all before it, within its document. */
const blockCausal = ([start, end]: readonly [number, number]): Slice[] =>
  Array.from({ length: Math.ceil((end - start) / 8) }, (_, i) => {
    const q1 = Math.min(end, start + 8 * i + 8);
    return slice("full", [start + 8 * i, q1], [start, q1]);
  });

const types: readonly SliceType[] = ["full", "causal", "inverseCausal", "bidirectionalCausal"];

/** The kinds of masks that MagiAttention's pipeline tests have. */
const kinds: Readonly<Record<string, readonly Slice[]>> = {
  full: masks.full().slices(LENGTH, LENGTH),
  causal: masks.causal().slices(LENGTH, LENGTH),
  "inverse causal": masks.inverseCausal().slices(LENGTH, LENGTH),
  "bidirectional causal": [slice("bidirectionalCausal", [0, 50], [3, 61])],
  "documents, full": masks.documents([3, 20, 1, 30, 7]).slices(LENGTH, LENGTH),
  "documents, causal": masks.documents([3, 20, 1, 30, 7], "causal").slices(LENGTH, LENGTH),
  "block causal": blockCausal([0, LENGTH]),
  "documents, block causal": documents.flatMap(blockCausal),
  "sliding window": masks.slidingWindow(9).slices(LENGTH, LENGTH),
  "two-sided window": [
    slice("causal", [0, 7], [0, 11]),
    slice("bidirectionalCausal", [7, 56], [2, 61]),
    slice("inverseCausal", [56, 61], [51, 61]),
  ],
  "global tokens": [
    slice("full", [0, 61], [0, 4]),
    slice("full", [0, 4], [4, 61]),
    slice("bidirectionalCausal", [4, 58], [4, 61]),
  ],
  prefix: masks.prefix(17).slices(LENGTH, LENGTH),
  "shared question": [
    slice("causal", [0, 15], [0, 15]),
    ...(
      [
        [15, 30],
        [30, 42],
        [42, 61],
      ] as const
    ).flatMap((answer) => [slice("full", answer, [0, 15]), slice("causal", answer, answer)]),
  ],
  "queries of several slices": [
    slice("full", [5, 40], [0, 9]),
    slice("causal", [10, 50], [9, 30]),
    slice("inverseCausal", [20, 61], [30, 61]),
  ],
  "full, in tiles": Array.from({ length: 121 }, (_, i) => [Math.floor(i / 11), i % 11] as const).map(([row, column]) =>
    slice(
      "full",
      [Math.floor((row * 61) / 11), Math.floor(((row + 1) * 61) / 11)],
      [Math.floor((column * 61) / 11), Math.floor(((column + 1) * 61) / 11)],
    ),
  ),
};

const sizes = [
  { batch: 1, numHeads: 2, numKvHeads: 2, headDim: 8 },
  { batch: 2, numHeads: 4, numKvHeads: 2, headDim: 4 },
  { batch: 3, numHeads: 3, numKvHeads: 1, headDim: 5 },
] as const;

const choices = [{}, { stages: 0 }, { stages: 1 }, { stages: { forward: 3, backward: 2 } }] as const;

function trialOf(
  name: string,
  mask: readonly Slice[],
  { size, i, queries = LENGTH, keys = LENGTH }: { size: number; i: number; queries?: number; keys?: number },
): Trial {
  const placement = placements()[i % placements().length]!;
  const { headDim, ...rest } = sizes[i % sizes.length]!;
  return {
    name: `${name}, ${placement.name}, ${size} ranks`,
    mesh: { sp: size },
    axes: ["sp"],
    ...rest,
    headDim,
    dtype: "float32",
    scale: headDim ** -0.5,
    mask,
    maskMod: slicesToMaskMod(mask),
    queries: { length: queries, placement },
    keys: { length: keys, placement },
    seed: i,
  };
}

async function expectExact(size: number, trials: readonly Trial[]): Promise<void> {
  const measured = await onWorld(makeWorld, { size }, async (ctx) => {
    const found = [];
    for (const [i, trial] of trials.entries())
      found.push(await measureOn(ctx, flex(choices[(i + size) % choices.length]), trial));
    return found;
  });
  for (const i of trials.keys())
    checkMeasurements(
      "flex",
      measured.map((rank) => rank[i]!),
    );
}

test("there are fifteen kinds, of slices that do not overlap, and of all types", () => {
  expect(Object.keys(kinds)).toHaveLength(15);
  for (const [name, mask] of Object.entries(kinds)) {
    for (let q = 0; q < LENGTH; q++) {
      for (let k = 0; k < LENGTH; k++) {
        const times = mask.filter((each) => isPairVisible(each, q, k)).length;
        expect(times, `${name}: query ${q}, key ${k}`).toBeLessThanOrEqual(1);
      }
    }
  }
  expect(new Set(Object.values(kinds).flatMap((mask) => mask.map(({ type }) => type)))).toEqual(new Set(types));
});

for (const size of [1, 2, 3, 4, 5, 6, 7, 8]) {
  test(`${size} ranks: every kind of mask is as exact as on one device`, async () => {
    const trials = Object.entries(kinds).map(([name, mask], i) => trialOf(name, mask, { size, i: i + size }));
    await expectExact(size, trials);
  });

  test(`${size} ranks: random slices of all types, queries and keys of different lengths`, async () => {
    const trials = Array.from({ length: 25 }, (_, i) => {
      const [queries, keys] = [17 + ((7 * i) % 29), 13 + ((11 * i) % 37)];
      return trialOf(`random ${i}`, randomSlices(queries, keys, 100 * size + i), { size, i, queries, keys });
    });
    await expectExact(size, trials);
  });
}
