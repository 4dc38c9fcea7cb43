import { checkTrials, measureBackend, runOnWorld, placements, slicesToMaskMod, type Trial } from "@mosaic/conformance";
import { type Context, layoutOf, local, type Mask, masks, randn } from "@mosaic/core";
import { dependencyTable } from "@mosaic/core/context-parallel";
import { expect, test } from "vitest";
import { ring } from "../src/index.ts";
import { createBackwardKeysCache, SPLIT_MULTIPLE } from "../src/local-kv-split.ts";
import { rotate, rotateGradients } from "../src/ring.ts";
import { createTable } from "./tables.ts";
import { makeWorld } from "../../../vitest.world.ts";

// Sequences are long enough for the local keys of every rank to be split into two parts.

/** Returns, for each rank, the number of rows of the first part; undefined if its local keys are not split. */
function listFirstRows(
  mask: Mask,
  length: number,
  { size, inner = local() }: { size: number; inner?: ReturnType<typeof ring> },
) {
  const tokens = layoutOf({ mesh: { sp: size }, axes: ["sp"], length });
  const getKeys = createBackwardKeysCache("sp", inner);
  return Array.from({ length: size }, (_, sp) => {
    const call = { at: { sp }, queries: tokens, keys: tokens, mask: mask.slices(length, length) };
    return getKeys(call, call.at, dependencyTable({ axis: "sp", size, inner }, call, call.at)).numFirstRows;
  });
}

test("local keys are split at half of the visible pairs, in whole blocks of the kernels", () => {
  const rows = 8 * SPLIT_MULTIPLE;
  expect(listFirstRows(masks.full(), 2 * rows, { size: 2 })).toEqual([rows / 2, rows / 2]);
  // In a causal tile, the first 1 − √½ of the keys account for half of the pairs: 0.29 · 8 blocks.
  expect(listFirstRows(masks.causal(), 2 * rows, { size: 2 })).toEqual([3 * SPLIT_MULTIPLE, 3 * SPLIT_MULTIPLE]);
});

test("ranks that only receive or only send gradients at the last step split their keys", () => {
  const firstRows = 3 * SPLIT_MULTIPLE;
  // Rank 2 sends its gradients of the keys of rank 0. No rank computes on those of rank 1 at the last step.
  expect(listFirstRows(masks.causal(), 24 * SPLIT_MULTIPLE, { size: 3 })).toEqual([firstRows, undefined, firstRows]);
});

test("local keys are not split if nothing is sent last, they are too few, or the inner backend communicates", () => {
  const blockMask = masks.documents([4 * SPLIT_MULTIPLE, 4 * SPLIT_MULTIPLE]);
  expect(listFirstRows(blockMask, 8 * SPLIT_MULTIPLE, { size: 2 })).toEqual([undefined, undefined]);
  expect(listFirstRows(masks.full(), 4 * SPLIT_MULTIPLE - 2, { size: 2 })).toEqual([undefined, undefined]);
  expect(listFirstRows(masks.full(), 4 * SPLIT_MULTIPLE, { size: 2 })).toEqual([SPLIT_MULTIPLE, SPLIT_MULTIPLE]);
  expect(listFirstRows(masks.full(), 8 * SPLIT_MULTIPLE, { size: 1 })).toEqual([undefined]);
  expect(listFirstRows(masks.full(), 8 * SPLIT_MULTIPLE, { size: 2, inner: ring({ axis: "gpu" }) })).toEqual([
    undefined,
    undefined,
  ]);
});

test("the second part is attended to between the post and the wait of the last gradients", async () => {
  const logs = await runOnWorld(makeWorld, { size: 3 }, async (ctx) => {
    const log: string[] = [];
    const group: Context["world"] = {
      ...ctx.world,
      rank: ctx.world.rank,
      size: ctx.world.size,
      device: ctx.device,
      sendRecv(transfers, options) {
        const work = ctx.world.sendRecv(transfers, options);
        log.push("post");
        return { wait: () => (log.push("wait"), work.wait()) };
      },
    };
    const [k, v, dk, dv] = [0, 1, 2, 3].map(() => randn(ctx, [1, 1, 5, 2]));
    const steps = rotate(ctx.world, { k: k!, v: v! }, createTable(3));
    const backwardSteps = { dependencies: createTable(3), numFirstRows: 2 };
    for (const { step, ...rows } of rotateGradients(group, steps, { dk: dk!, dv: dv! }, backwardSteps))
      log.push(`step ${step}: ${rows.k.shape[2]} of ${rows.dk.shape[2]}`);
    await ctx.device.stream.synchronize();
    return log.join(", ");
  });
  const expectedLog = "step 0: 2 of 2, step 1: 5 of 5, post, step 2: 5 of 5, wait, post, step 3: 3 of 3, wait";
  expect(logs).toEqual([expectedLog, expectedLog, expectedLog]);
});

const LENGTH = 1553;
const documents = [700, 3, 850];
const masksByName: Readonly<Record<string, Mask>> = {
  full: masks.full(),
  causal: masks.causal(),
  window: masks.slidingWindow(900),
  documents: masks.documents(documents, masks.causal()),
};

test.each([2, 3])("%s ranks: gradients in two parts are as exact as on one device", async (size) => {
  const trials = Object.entries(masksByName).map(([name, kind], i): Trial => {
    const mask = kind.slices(LENGTH, LENGTH);
    const placement = placements()[(i + size) % placements().length]!;
    return {
      name: `${name}, ${placement.name}, ${size} ranks`,
      mesh: { sp: size },
      axes: ["sp"],
      ...{ batch: 1, numHeads: 1, numKvHeads: 1, headDim: 4, scale: 0.5, dtype: "float32" },
      mask,
      maskMod: slicesToMaskMod(mask),
      queries: { length: LENGTH, placement },
      keys: { length: LENGTH, placement },
      seed: i,
    };
  });
  const rankMeasurements = await runOnWorld(makeWorld, { size }, async (ctx) => {
    const measurements = [];
    for (const trial of trials) measurements.push(await measureBackend(ctx, ring(), trial));
    return measurements;
  });
  checkTrials("ring", rankMeasurements);
});
