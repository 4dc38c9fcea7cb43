import { masks, type Slice, type SliceType } from "@mosaic/core";

/** Length of the sequence of `maskKinds`, in tokens. */
export const maskKindsLength = 61;

const createSlice = (
  type: SliceType,
  [q0, q1]: readonly [number, number],
  [k0, k1]: readonly [number, number],
): Slice => ({
  q0,
  q1,
  k0,
  k1,
  type,
});

/** Documents of 3, 20, 1, 30 and 7 tokens. */
const documentRanges: readonly (readonly [number, number])[] = [
  [0, 3],
  [3, 23],
  [23, 24],
  [24, 54],
  [54, 61],
];

/** Returns slices for blocks of 8: a query attends to its own block and all earlier blocks of its document. */
const createBlockCausalSlices = ([start, end]: readonly [number, number]): Slice[] =>
  Array.from({ length: Math.ceil((end - start) / 8) }, (_, i) => {
    const q1 = Math.min(end, start + 8 * i + 8);
    return createSlice("full", [start + 8 * i, q1], [start, q1]);
  });

/**
 * The fifteen kinds of masks in MagiAttention's pipeline tests, by name, for a sequence of `maskKindsLength` tokens.
 * Together they have slices of all types, which do not overlap, and queries that are in no slice.
 *
 * @example
 * ```ts
 * import { maskKinds } from "@mosaic/conformance";
 * maskKinds["causal"]; // => [{ q0: 0, q1: 61, k0: 0, k1: 61, type: "causal" }]
 * ```
 */
export const maskKinds: Readonly<Record<string, readonly Slice[]>> = {
  full: masks.full().slices(maskKindsLength, maskKindsLength),
  causal: masks.causal().slices(maskKindsLength, maskKindsLength),
  "inverse causal": masks.inverseCausal().slices(maskKindsLength, maskKindsLength),
  "bidirectional causal": [createSlice("bidirectionalCausal", [0, 50], [3, 61])],
  "documents, full": masks.documents([3, 20, 1, 30, 7]).slices(maskKindsLength, maskKindsLength),
  "documents, causal": masks.documents([3, 20, 1, 30, 7], "causal").slices(maskKindsLength, maskKindsLength),
  "block causal": createBlockCausalSlices([0, maskKindsLength]),
  "documents, block causal": documentRanges.flatMap(createBlockCausalSlices),
  "sliding window": masks.slidingWindow(9).slices(maskKindsLength, maskKindsLength),
  "two-sided window": [
    createSlice("causal", [0, 7], [0, 11]),
    createSlice("bidirectionalCausal", [7, 56], [2, 61]),
    createSlice("inverseCausal", [56, 61], [51, 61]),
  ],
  "global tokens": [
    createSlice("full", [0, 61], [0, 4]),
    createSlice("full", [0, 4], [4, 61]),
    createSlice("bidirectionalCausal", [4, 58], [4, 61]),
  ],
  prefix: masks.prefix(17).slices(maskKindsLength, maskKindsLength),
  "shared question": [
    createSlice("causal", [0, 15], [0, 15]),
    ...(
      [
        [15, 30],
        [30, 42],
        [42, 61],
      ] as const
    ).flatMap((answerRange) => [
      createSlice("full", answerRange, [0, 15]),
      createSlice("causal", answerRange, answerRange),
    ]),
  ],
  "queries in several slices": [
    createSlice("full", [5, 40], [0, 9]),
    createSlice("causal", [10, 50], [9, 30]),
    createSlice("inverseCausal", [20, 61], [30, 61]),
  ],
  "full, in tiles": Array.from({ length: 121 }, (_, i) => [Math.floor(i / 11), i % 11] as const).map(([row, column]) =>
    createSlice(
      "full",
      [Math.floor((row * 61) / 11), Math.floor(((row + 1) * 61) / 11)],
      [Math.floor((column * 61) / 11), Math.floor(((column + 1) * 61) / 11)],
    ),
  ),
};
