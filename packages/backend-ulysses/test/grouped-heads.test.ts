import {
  backendTrials,
  checkTrials,
  perturbContext,
  type Measurement,
  measureBackend,
  runOnWorld,
  placements,
  poisonMemory,
  type Trial,
} from "@mosaic/conformance";
import { attention, type AttentionBackend, layoutOf, local, ones, randn } from "@mosaic/core";
import { expect, test } from "vitest";
import { ulysses } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

/** Numbers of query heads, KV heads and ranks. */
const cases = [
  { numHeads: 3, numKvHeads: 3, size: 4, why: "one rank has no heads" },
  { numHeads: 8, numKvHeads: 2, size: 3, why: "a rank's heads begin in one group and end in the next" },
  { numHeads: 12, numKvHeads: 3, size: 2, why: "a rank has one and a half groups" },
  { numHeads: 10, numKvHeads: 5, size: 3, why: "a rank has the end of one group and a whole one" },
  { numHeads: 6, numKvHeads: 1, size: 4, why: "every rank needs the one KV head" },
  { numHeads: 7, numKvHeads: 7, size: 5, why: "some ranks have two heads, others one" },
  { numHeads: 2, numKvHeads: 1, size: 7, why: "most ranks only pass rows" },
] as const;

function createTrials({ numHeads, numKvHeads, size }: (typeof cases)[number]): Trial[] {
  const mesh = { sp: size };
  return placements().flatMap((placement, i) =>
    backendTrials(
      { mesh, axes: ["sp"] },
      {
        placement,
        dtype: "float32",
        seed: 31 * (i + 1),
        extents: [{ queries: 26, keys: 31, masks: ["full", "causal", "slidingWindow"] }],
      },
    ).map((trial) => ({ ...trial, name: `${trial.name} (${numHeads}/${numKvHeads} heads)`, numHeads, numKvHeads })),
  );
}

test.each(
  cases.map((each) => [`${each.numHeads}/${each.numKvHeads} heads on ${each.size} ranks`, each.why, each] as const),
)("%s are as exact as on one device: %s", async (_, __, headCase) => {
  const trials = createTrials(headCase);
  expect(trials.length).toBe(15);
  const ranks = await runOnWorld(makeWorld, { size: headCase.size, wrapDevice: poisonMemory }, async (ctx) => {
    const perturbedCtx = perturbContext(ctx, { completion: "late", seed: 9 });
    const measurements: Measurement[] = [];
    for (const trial of trials) measurements.push(await measureBackend(perturbedCtx, ulysses(), trial));
    return measurements;
  });
  checkTrials("ulysses", ranks);
});

test("chunks of a single number are exchanged: one row, one head and one column on each of two ranks", async () => {
  const options = { placement: placements()[0]!, dtype: "float32", seed: 5 } as const;
  const extents = [{ queries: 2, keys: 2, masks: ["full", "causal"] }];
  const trials = backendTrials({ mesh: { sp: 2 }, axes: ["sp"] }, { ...options, extents }).map(
    (trial): Trial => ({ ...trial, batch: 1, numHeads: 2, numKvHeads: 2, headDim: 1 }),
  );
  const ranks = await runOnWorld(makeWorld, { size: 2, wrapDevice: poisonMemory }, async (ctx) => {
    const measurements: Measurement[] = [];
    for (const trial of trials) measurements.push(await measureBackend(ctx, ulysses(), trial));
    return measurements;
  });
  checkTrials("ulysses", ranks);
});

test("the inner backend receives the origin of each part of a rank's heads, forward and backward", async () => {
  const origins = { attend: new Set<string>(), attendBackward: new Set<string>() };
  const localBackend = local();
  const inner: AttentionBackend = {
    ...localBackend,
    attend(ctx, call, state, kv) {
      origins.attend.add(`rank ${ctx.rank}: ${call.q.shape[1]} heads from ${call.modifiers!.origin!.head}`);
      localBackend.attend(ctx, call, state, kv);
    },
    attendBackward(ctx, call, grads, kv) {
      origins.attendBackward.add(`rank ${ctx.rank}: ${call.q.shape[1]} heads from ${call.modifiers!.origin!.head}`);
      localBackend.attendBackward(ctx, call, grads, kv);
    },
  };
  await runOnWorld(makeWorld, { size: 2, mesh: { sp: 2 } }, async (ctx) => {
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 8 });
    using q = randn(ctx, [1, 12, 4, 8]);
    using k = randn(ctx, [1, 3, 4, 8]);
    using slopes = ones(ctx, [12]);
    q.requiresGrad = true;
    const options = { backend: ulysses({ inner }), alibiSlopes: slopes, queries: layout, keys: layout };
    using out = attention(ctx, q, k, k, options);
    using dOut = ones(ctx, out.shape);
    out.backward(dOut);
    using dq = q.grad!;
    await dq.read();
  });
  // Of four query heads per KV head, a rank has one and a half groups.
  const parts = [
    "rank 0: 4 heads from 0",
    "rank 0: 2 heads from 4",
    "rank 1: 2 heads from 6",
    "rank 1: 4 heads from 8",
  ];
  expect([...origins.attend].toSorted()).toEqual(parts.toSorted());
  expect([...origins.attendBackward].toSorted()).toEqual(parts.toSorted());
});
