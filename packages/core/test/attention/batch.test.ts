import { describe, expect, test } from "vitest";
import { attention, type AttentionOptions } from "../../src/attention/attention.ts";
import type { AttentionBackend } from "../../src/attention/backend.ts";
import type { AttentionModifiers } from "../../src/attention/tile.ts";
import { checkTile } from "../../src/attention/check.ts";
import type { Context } from "../../src/context.ts";
import { fromArray } from "../../src/creation.ts";
import { OptionError, ShapeError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { bidirectionalCausal, causal, documents, full, inverseCausal, slidingWindow } from "../../src/mask/index.ts";
import { batchMaskOptions, checkDistances, resolveBatchMaskUnchecked } from "../../src/mask/samples.ts";
import type { Mask } from "../../src/mask/slice.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import type { Tensor } from "../../src/tensor.ts";
import { allGatherBackend, ReferenceDevice, referenceWorld, values } from "../reference/index.ts";

const openContext = () => init({ device: new ReferenceDevice({ double: true }) });

const [batch, heads, kvHeads, sq, sk, width] = [4, 4, 2, 7, 9, 3];
const lengths = { queries: [5, 7, 0, 1], keys: [6, 9, 4, 0] };

/** Creates q, dOut [B,H,Sq,D] and k, v [B,Hkv,Sk,D] of a batch, or only the tokens of one of its samples. */
function createInputs(ctx: Context, padding: "left" | "right", onlySample?: number) {
  const createTensor = (h: number, s: number, sampleLengths: readonly number[], seed: number): Tensor => {
    const batchValues = values(batch * h * s * width, seed);
    if (onlySample === undefined) return fromArray(ctx, batchValues, [batch, h, s, width]);
    const [length, firstRow] = [sampleLengths[onlySample]!, padding === "left" ? s - sampleLengths[onlySample]! : 0];
    const rows = Array.from(
      { length: h * length },
      (_, i) => (onlySample * h + Math.floor(i / length)) * s + firstRow + (i % length),
    );
    return fromArray(
      ctx,
      rows.flatMap((row) => batchValues.slice(row * width, (row + 1) * width)),
      [1, h, length, width],
    );
  };
  const [q, k, v] = [
    createTensor(heads, sq, lengths.queries, 1),
    createTensor(kvHeads, sk, lengths.keys, 2),
    createTensor(kvHeads, sk, lengths.keys, 3),
  ];
  for (const x of [q, k, v]) x.requiresGrad = true;
  return { q, k, v, dOut: createTensor(heads, sq, lengths.queries, 4) };
}

async function results(ctx: Context, { q, k, v, dOut }: ReturnType<typeof createInputs>, options: AttentionOptions) {
  const { out, lse } = attention(ctx, q, k, v, { ...options, returnLse: true });
  out.backward(dOut);
  const resultValues = await Promise.all([out, lse, q.grad!, k.grad!, v.grad!].map((x) => x.read()));
  return {
    out: resultValues[0]!,
    lse: resultValues[1]!,
    dq: resultValues[2]!,
    dk: resultValues[3]!,
    dv: resultValues[4]!,
  };
}

const sampleMasks: readonly Mask[] = [causal(), slidingWindow(3), full(), inverseCausal()];

describe.each(["left", "right"] as const)("attention on batches padded on the %s", (padding) => {
  test.each<[string, Mask | readonly Mask[]]>([
    ["causal", causal()],
    ["full", full()],
    ["slidingWindow", slidingWindow(4)],
    ["bidirectionalCausal", bidirectionalCausal()],
    ["a mask of each sample", sampleMasks],
  ])("%s: computes each sample bitwise as if alone, with empty results for the padding", async (_, mask) => {
    await using ctx = await openContext();
    const batchResults = await results(ctx, createInputs(ctx, padding), { mask, lengths, padding });
    for (let sample = 0; sample < batch; sample++) {
      const sampleMask = Array.isArray(mask) ? (mask as readonly Mask[])[sample]! : (mask as Mask);
      const sampleResults = await results(ctx, createInputs(ctx, padding, sample), { mask: sampleMask });
      for (const name of ["out", "lse", "dq", "dk", "dv"] as const) {
        const isKey = name === "dk" || name === "dv";
        const [h, s] = isKey ? [kvHeads, sk] : [heads, sq];
        const length = (isKey ? lengths.keys : lengths.queries)[sample]!;
        const [size, firstRow] = [name === "lse" ? 1 : width, padding === "left" ? s - length : 0];
        for (let row = 0; row < h * s; row++) {
          const [head, tokenIndex] = [Math.floor(row / s), (row % s) - firstRow];
          const start = (sample * h * s + row) * size;
          const actual = [...batchResults[name].slice(start, start + size)];
          const isToken = tokenIndex >= 0 && tokenIndex < length;
          const expected = isToken
            ? [
                ...sampleResults[name].slice(
                  (head * length + tokenIndex) * size,
                  (head * length + tokenIndex + 1) * size,
                ),
              ]
            : new Array<number>(size).fill(name === "lse" ? -Infinity : 0);
          // Adding 0 makes 0 and −0 equal.
          expect(
            actual.map((x) => x + 0),
            `${name}, sample ${sample}, row ${row}`,
          ).toEqual(expected.map((x) => x + 0));
        }
      }
    }
  });
});

test("documents of each sample are shifted to the positions of its tokens", async () => {
  const resolvedMask = resolveBatchMaskUnchecked(
    "test",
    batchMaskOptions.parse({
      mask: [documents([2, 1]), documents([4], "causal")],
      lengths: { queries: [3, 4], keys: [3, 4] },
      padding: "left",
    }),
    { batch: 2, queries: 5, keys: 5 },
  );
  expect(resolvedMask.mask).toEqual([]);
  expect(resolvedMask.modifiers!.sampleMasks).toEqual([
    [
      { q0: 2, q1: 4, k0: 2, k1: 4, type: "full" },
      { q0: 4, q1: 5, k0: 4, k1: 5, type: "full" },
    ],
    [{ q0: 1, q1: 5, k0: 1, k1: 5, type: "causal" }],
  ]);
});

test("distances require equal left padding of queries and keys, except in samples without queries or keys", () => {
  const check = (queries: readonly number[], keys: readonly number[]): void =>
    checkDistances(
      "test",
      "positions",
      { lengths: { queries, keys }, padding: "left" },
      { batch: 2, queries: 3, keys: 5 },
    );
  check([3, 0], [5, 4]);
  check([3, 1], [5, 3]);
  check([3, 1], [5, 0]);
  expect(() => check([3, 1], [5, 4])).toThrow(
    /received 2 positions before the queries and 1 before the keys of sample 1/,
  );
  expect(() => check([3, 2], [5, 1])).toThrow(
    /received 1 positions before the queries and 4 before the keys of sample 1/,
  );
});

test("masks are resolved once per pair of lengths, and samples with equal masks share the result", () => {
  let callCount = 0;
  const mask: Mask = {
    name: "counted",
    slices(queries, keys) {
      callCount++;
      return causal().slices(queries, keys);
    },
  };
  const size = { batch: 3, queries: 6, keys: 6 };
  const resolve = (options: object) => resolveBatchMaskUnchecked("test", batchMaskOptions.parse(options), size);
  for (const padding of ["left", "right"] as const) {
    const resolvedByLengths = resolve({ mask, lengths: { queries: [2, 6, 2], keys: [2, 6, 2] }, padding });
    expect(resolve({ mask: [mask, mask, mask], lengths: { queries: [2, 6, 2], keys: [2, 6, 2] }, padding })).toBe(
      resolvedByLengths,
    );
    expect(resolvedByLengths.modifiers!.sampleMasks![0]).toBe(resolvedByLengths.modifiers!.sampleMasks![2]);
    const resolvedByMasks = resolve({ mask: [mask, mask, mask], lengths: { keys: [6, 6, 6] }, padding });
    expect(resolvedByMasks).toEqual({ mask: causal().slices(6, 6), modifiers: undefined });
  }
  expect(callCount).toBe(2); // for 2 × 2 and for 6 × 6
  expect(resolve({ mask, lengths: { keys: [4, 6, 5] } })).not.toBe(resolve({ mask, lengths: { keys: [4, 5, 6] } }));
});

describe("attention on an invalid batch, before the backend runs", () => {
  const createInvalidCall = async (options: object): Promise<() => unknown> => {
    const ranks = await referenceWorld(4);
    const ctx = ranks[3]!;
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 10 });
    const x = fromArray(ctx, values(2 * 2 * 2 * 4), [2, 2, 2, 4]);
    const backend: AttentionBackend = { ...allGatherBackend(), attend: () => expect.unreachable() };
    return () => attention(ctx, x, x, x, { backend, queries: layout, keys: layout, ...options });
  };

  test.each<[string, object, typeof OptionError | typeof ShapeError, RegExp]>([
    [
      "more masks than samples",
      { mask: [full(), full(), full()] },
      ShapeError,
      /^gather\(sp\), rank 3: mask: expected 2 masks, one for each sample of the batch, received 3; pass one/,
    ],
    ["no masks", { mask: [] }, ShapeError, /expected 2 masks.*received 0/],
    ["the name of a mask among masks", { mask: [full(), "causal"] }, OptionError, /attention: mask: expected a Mask/],
    [
      "fewer lengths than samples",
      { lengths: { queries: [3] } },
      ShapeError,
      /lengths\.queries: expected 2 lengths.*received 1/,
    ],
    [
      "lengths beyond the sequence",
      { lengths: { keys: [10, 11] } },
      ShapeError,
      /rank 3: lengths\.keys\[1\]: expected at most 10 tokens, the length of the padded sequence, received 11/,
    ],
    [
      "negative lengths",
      { lengths: { keys: [10, -1] } },
      OptionError,
      /lengths: keys: expected an array, each element an integer ≥ 0/,
    ],
    ["lengths of neither", { lengths: [3, 4] }, OptionError, /lengths: expected \{ queries\?, keys\? \}/],
    [
      "an unknown side",
      { lengths: { keys: [1, 2] }, padding: "both" },
      OptionError,
      /padding: expected "left" or "right", received "both"/,
    ],
    [
      "documents that are not those of the sample's tokens",
      { mask: [documents([10]), documents([10])], lengths: { queries: [10, 8], keys: [10, 8] } },
      ShapeError,
      /a sequence of length 10/,
    ],
  ])("rejects %s", async (_, options, kind, message) => {
    const invalidCall = await createInvalidCall(options);
    expect(invalidCall).toThrow(kind);
    expect(invalidCall).toThrow(message);
  });

  test("rejects sample masks on a device without the feature", async () => {
    const device = Object.assign(new ReferenceDevice(), { features: [] });
    await using ctx = await init({ device });
    const x = fromArray(ctx, values(2 * 2 * 3 * 4), [2, 2, 3, 4]);
    expect(() => attention(ctx, x, x, x, { lengths: { keys: [1, 3] } })).toThrow(
      /attention on reference:0: expected a call without sampleMasks, which this device does not support, received sampleMasks for 2 samples/,
    );
    // Samples with equal masks do not need the feature.
    expect(() => attention(ctx, x, x, x, { mask: causal(), lengths: { keys: [2, 2] } })).not.toThrow();
  });
});

test("a batch is distinguished from a smaller one whose samples have the same masks", () => {
  const resolve = (keys: readonly number[]) =>
    resolveBatchMaskUnchecked("test", batchMaskOptions.parse({ mask: causal(), lengths: { keys } }), {
      ...{ batch: keys.length, queries: 6, keys: 6 },
    });
  const [small, large] = [resolve([4, 6]), resolve([4, 6, 5])];
  expect(large.modifiers!.sampleMasks).toEqual([4, 6, 5].map((keys) => causal().slices(6, keys)));
  expect([resolve([4, 6]), resolve([4, 6, 5])].map((each, i) => each === [small, large][i])).toEqual([true, true]);
});

test("checkTile requires a mask for each sample that is disjoint from the common mask", async () => {
  await using ctx = await openContext();
  const x = fromArray(ctx, values(2 * 4), [2, 1, 4, 1]);
  const rows = [{ start: 0, length: 4, step: 1 }];
  const createTileCheck =
    (modifiers: AttentionModifiers, mask = causal().slices(2, 2)) =>
    () =>
      checkTile(x, { k: x, v: x }, { q: rows, k: rows, mask, scale: 1, modifiers });
  const sliceFields = { q0: 2, q1: 4, k0: 0, k1: 4, type: "full" } as const;
  expect(createTileCheck({ sampleMasks: [[sliceFields], []] })).not.toThrow();
  expect(createTileCheck({ sampleMasks: [[sliceFields], [], []], origin: { batch: 1, head: 0 } })).not.toThrow();
  expect(createTileCheck({ sampleMasks: [[sliceFields]] })).toThrow(
    /sampleMasks: expected at least 2 masks, one per sample, received 1/,
  );
  expect(createTileCheck({ sampleMasks: [[], [sliceFields]], origin: { batch: 1, head: 0 } })).toThrow(
    /expected at least 3 masks, one per sample, including the samples before origin.batch 1, received 2/,
  );
  const overlappingSlice = { ...sliceFields, q0: 1 };
  for (let repetition = 0; repetition < 2; repetition++) {
    expect(createTileCheck({ sampleMasks: [[], [overlappingSlice]] })).toThrow(
      /mask of sample 1: expected disjoint slices, received overlapping slices queries \[0,2\) × keys \[0,2\) type "causal" and/,
    );
  }
  const sampleMasks = [[sliceFields], []];
  expect(createTileCheck({ sampleMasks })).not.toThrow();
  expect(createTileCheck({ sampleMasks }, full().slices(4, 4))).toThrow(/mask of sample 0: expected disjoint slices/);
  expect(createTileCheck({ sampleMasks: [[sliceFields, sliceFields], []] })).toThrow(
    /mask of sample 0: expected disjoint slices/,
  );
  expect(createTileCheck({ sampleMasks: [[{ ...sliceFields, q1: 1.5 }], []] })).toThrow(
    /mask of sample 0: expected integers/,
  );
});
