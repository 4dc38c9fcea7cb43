import {
  addTraffic,
  runBackendOnRank,
  backendTrials,
  batchTrials,
  measureTraffic,
  slicesToMaskMod,
  runOnWorld,
  placements,
  randomSlices,
  type Trial,
} from "@mosaic/conformance";
import {
  attention,
  contiguous,
  dtypeBytes,
  layoutOf,
  masks,
  ones,
  type Placement,
  positions,
  randn,
  spansLength,
  striped,
  type Tensor,
  type Traffic,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { evaluateDispatch, flex, type FlexOptions, flexTraffic } from "../src/index.ts";
import { createFlexSettings, flexOptions } from "../src/flex.ts";
import { FlexPlan } from "../src/plan.ts";
import { makeWorld } from "../../../vitest.world.ts";
import { assignHosts, createLayouts, makeWorldOverHosts, countRequiredRows } from "./trial-layouts.ts";

const stages = [undefined, 0, 1, { forward: 3, backward: 2 }] as const;

/** Options other than the stages. */
type ExchangeOptions = Pick<FlexOptions, "queriesTravel" | "hierarchical">;

/** Measures the traffic of one forward and backward of each trial, by trial and rank. */
async function measureTrials(
  size: number,
  trials: readonly Trial[],
  exchangeOptions: ExchangeOptions = {},
): Promise<Traffic[][]> {
  const openWorld = exchangeOptions.hierarchical ? makeWorldOverHosts : makeWorld;
  const trafficByRank = await runOnWorld(openWorld, { size }, async (ctx) => {
    const traffic: Traffic[] = [];
    for (const [i, trial] of trials.entries()) {
      const backend = flex({ stages: stages[i % stages.length], ...exchangeOptions });
      traffic.push(...(await measureTraffic([ctx.world], () => runBackendOnRank(ctx, backend, trial))));
    }
    return traffic;
  });
  return trials.map((_, i) => trafficByRank.map((traffic) => traffic[i]!));
}

/** Computes the same traffic with the closed form. */
function predictTraffic(trial: Trial, i: number, exchangeOptions: ExchangeOptions = {}): Traffic[] {
  const { mesh, mask, modifiers, ...sizes } = trial;
  const hosts = assignHosts(mesh["sp"]!);
  return hosts.map((_, sp) => {
    const call = { at: { sp }, mask, modifiers, ...createLayouts(trial) };
    const settings = { ...exchangeOptions, hosts, stages: stages[i % stages.length] };
    const { forward, backward } = flexTraffic({ ...sizes, mesh, call, ...settings });
    return addTraffic(forward, backward);
  });
}

/** Checks that all ranks together send each required row once: k and v in each pass, and dk and dv in float32. */
function expectRequiredRows(trial: Trial, rankTraffic: readonly Traffic[]): void {
  const { batch, numKvHeads, headDim, dtype } = trial;
  const bytesPerRow = 2 * batch * numKvHeads * headDim * (2 * dtypeBytes[dtype] + dtypeBytes.float32);
  const total = rankTraffic.reduce((sum, { bytesSent }) => sum + bytesSent, 0);
  expect(total, trial.name).toBe(countRequiredRows(trial) * bytesPerRow);
}

for (const size of [1, 2, 3, 5]) {
  test(`${size} ranks send the bytes of the closed form, with each required row once`, async () => {
    const dtype = size % 2 ? "float32" : "bfloat16";
    const trials = placements().flatMap((placement) =>
      backendTrials({ mesh: { sp: size }, axes: ["sp"] }, { placement, dtype, seed: 1 }),
    );
    const measuredTraffic = await measureTrials(size, trials);
    for (const [i, trial] of trials.entries()) {
      expect(measuredTraffic[i], trial.name).toEqual(predictTraffic(trial, i));
      expectRequiredRows(trial, measuredTraffic[i]!);
    }
  });
}

test.each([4, 7])("%i ranks send what any sample of a batch with unequal lengths and masks requires", async (size) => {
  const trials = batchTrials({ mesh: { sp: size }, axes: ["sp"] });
  const measuredTraffic = await measureTrials(size, trials);
  for (const [i, trial] of trials.entries()) {
    expect(measuredTraffic[i], trial.name).toEqual(predictTraffic(trial, i));
    expectRequiredRows(trial, measuredTraffic[i]!);
  }
});

test("evaluateDispatch counts the rows that flex sends for samples with different masks", () => {
  const [length, ranks, headDim] = [64, 4, 2];
  const mask = [masks.documents([40, 24], "causal"), masks.documents([10, 54], "causal"), masks.slidingWindow(9)];
  const sampleMasks = mask.map((each) => each.slices(length, length));
  for (const placement of placements()) {
    const layout = layoutOf({ mesh: { sp: ranks }, axes: ["sp"], length, placement });
    const evaluation = evaluateDispatch({ mask, length, ranks, placement });
    for (const [sp, { receivedRows, sentRows }] of evaluation.ranks.entries()) {
      const call = { at: { sp }, mask: [], modifiers: { sampleMasks }, queries: layout, keys: layout };
      const sizes = { batch: mask.length, numHeads: 1, numKvHeads: 1, headDim, dtype: "float32" } as const;
      const { bytesReceived, bytesSent } = flexTraffic({ mesh: { sp: ranks }, call, ...sizes }).forward;
      const bytesPerRow = 2 * headDim * dtypeBytes.float32;
      expect([receivedRows * bytesPerRow, sentRows * bytesPerRow], placement.name).toEqual([bytesReceived, bytesSent]);
    }
  }
});

test("5 ranks on three hosts send the bytes of the closed form, and receive the same bytes as without hosts", async () => {
  const size = 5;
  const [first, , striped] = placements();
  const trials = [first!, striped!].flatMap((placement) =>
    backendTrials({ mesh: { sp: size }, axes: ["sp"] }, { placement, dtype: "bfloat16", seed: 1 }),
  );
  const measuredTraffic = await measureTrials(size, trials, { hierarchical: true });
  for (const [i, trial] of trials.entries()) {
    expect(measuredTraffic[i], trial.name).toEqual(predictTraffic(trial, i, { hierarchical: true }));
    const listReceivedBytes = (traffic: readonly Traffic[]) => traffic.map(({ bytesReceived }) => bytesReceived);
    expect(listReceivedBytes(measuredTraffic[i]!), trial.name).toEqual(listReceivedBytes(predictTraffic(trial, i)));
    expectRequiredRows(trial, measuredTraffic[i]!);
  }
});

test("ranks on several hosts send queries to a host once", async () => {
  for (const size of [4, 5]) {
    const trials = backendTrials(
      { mesh: { sp: size }, axes: ["sp"] },
      { placement: placements()[0]!, dtype: "bfloat16", seed: 1 },
    );
    const exchangeOptions = { queriesTravel: true, hierarchical: true };
    const measuredTraffic = await measureTrials(size, trials, exchangeOptions);
    const directTraffic = trials.map((trial, i) => predictTraffic(trial, i, { queriesTravel: true }));
    for (const [i, trial] of trials.entries())
      expect(measuredTraffic[i], trial.name).toEqual(predictTraffic(trial, i, exchangeOptions));
    expect(measuredTraffic).not.toEqual(directTraffic);
  }
});

test("the closed form counts exactly the required rows of 200 random lists of slices", () => {
  for (let seed = 0; seed < 200; seed++) {
    const [size, queries, keys] = [2 + (seed % 7), 20 + (seed % 23), 20 + ((seed * 7) % 31)];
    const placement = placements()[seed % placements().length]!;
    const mask = randomSlices(queries, keys, 1000 + seed);
    const trial: Trial = {
      ...{ name: `random ${seed}`, mesh: { sp: size }, axes: ["sp"], batch: 1, numHeads: 2, numKvHeads: 1, headDim: 4 },
      ...{ dtype: "float32", scale: 1, mask, maskMod: slicesToMaskMod(mask), seed },
      queries: { length: queries, placement },
      keys: { length: keys, placement },
    };
    const receivedBytes = predictTraffic(trial, seed).reduce((sum, { bytesReceived }) => sum + bytesReceived, 0);
    expect(receivedBytes, trial.name).toBe(countRequiredRows(trial) * 2 * 4 * 4 * 3);
  }
});

test("the queries that attend to the keys of a rank are exact for shards of consecutive positions", () => {
  for (let seed = 0; seed < 100; seed++) {
    const [size, length] = [2 + (seed % 5), 20 + (seed % 23)];
    const mask = randomSlices(length, length, 2000 + seed);
    const maskMod = slicesToMaskMod(mask);
    const mesh = { sp: size };
    const layout = layoutOf({ mesh, axes: ["sp"], placement: placements()[seed % 2]!, length });
    const call = { at: { sp: 0 }, mask, queries: layout, keys: layout };
    const plan = new FlexPlan(createFlexSettings(flexOptions.parse({ queriesTravel: true })), { mesh }, call, call.at);
    for (let rank = 0; rank < size; rank++) {
      const keys = [...positions(layout.spans({ sp: rank }))];
      const queries = Array.from({ length }, (_, q) => q).filter((q) => !keys.includes(q));
      const attending = queries.filter((q) => keys.some((k) => maskMod(q, k, 0)));
      expect(plan.requiredQueries(rank).count, `seed ${seed}, rank ${rank}`).toBe(attending.length);
    }
  }
});

/** The first positions striped, the rest contiguous. */
const partlyStriped: Placement = {
  name: "partly striped",
  spans(rank, ranks, length) {
    const numStriped = Math.min(2 * ranks, length);
    const rest = contiguous().spans(rank, ranks, length - numStriped);
    return [
      { start: rank, length: Math.max(0, Math.ceil((numStriped - rank) / ranks)), step: ranks },
      ...rest.map((span) => ({ ...span, start: span.start + numStriped })),
    ];
  },
};

test.each([...placements(), partlyStriped])(
  "the closed form counts exactly the required rows of bands of keys, and of bands within other keys: $name",
  (keyPlacement) => {
    for (const size of [3, 4, 5]) {
      for (const width of [1, size - 1, size, size + 1]) {
        const [queries, keys] = [23, 22 + width];
        const band = { q0: 0, q1: queries, k0: 0, k1: keys, type: "bidirectionalCausal" } as const;
        // The keys of the last queries contain those of the band.
        const others = { q0: queries, q1: queries + 5, k0: 0, k1: keys - 3, type: "full" } as const;
        for (const mask of [[band], [band, others]]) {
          const trial: Trial = {
            ...{ name: `${size} ranks, ${width} keys`, mesh: { sp: size }, axes: ["sp"], batch: 1, numHeads: 1 },
            ...{ numKvHeads: 1, headDim: 4, dtype: "float32", scale: 1, mask, maskMod: slicesToMaskMod(mask), seed: 1 },
            queries: { length: mask.at(-1)!.q1, placement: striped() },
            keys: { length: keys, placement: keyPlacement },
          };
          const receivedBytes = predictTraffic(trial, size).reduce((sum, { bytesReceived }) => sum + bytesReceived, 0);
          expect(receivedBytes, trial.name).toBe(countRequiredRows(trial) * 2 * 4 * 4 * 3);
        }
      }
    }
  },
);

test.each([2, 3, 5])(
  "%i ranks with queriesTravel send the bytes of the closed form, and never more than without it",
  async (size) => {
    const trials = placements().flatMap((placement) =>
      backendTrials({ mesh: { sp: size }, axes: ["sp"] }, { placement, dtype: "bfloat16", seed: 1 }),
    );
    const measuredTraffic = await measureTrials(size, trials, { queriesTravel: true });
    let numReduced = 0;
    for (const [i, trial] of trials.entries()) {
      expect(measuredTraffic[i], trial.name).toEqual(predictTraffic(trial, i, { queriesTravel: true }));
      const sumBytesSent = (traffic: readonly Traffic[]) => traffic.reduce((sum, { bytesSent }) => sum + bytesSent, 0);
      const keysOnlyBytes = sumBytesSent(predictTraffic(trial, i));
      expect(sumBytesSent(measuredTraffic[i]!), trial.name).toBeLessThanOrEqual(keysOnlyBytes);
      if (sumBytesSent(measuredTraffic[i]!) < keysOnlyBytes) numReduced++;
    }
    expect(numReduced).toBeGreaterThan(5);
  },
);

test.each([
  ["not sent", {}, {}],
  ["sent", { queriesTravel: true }, { stages: 2 }],
] as const)(
  "values of another head size than the keys are counted when queries are %s",
  async (_, exchangeOptions, stageOptions) => {
    const mesh = { sp: 3 };
    const [batch, numHeads, numKvHeads, headDim, valueHeadDim] = [2, 4, 2, 8, 12];
    const queries = layoutOf({ mesh, axes: ["sp"], placement: contiguous(), length: 8 });
    const keys = layoutOf({ mesh, axes: ["sp"], placement: contiguous(), length: 60 });
    const sizes = { batch, numHeads, numKvHeads, headDim, valueHeadDim, dtype: "float32" } as const;
    await runOnWorld(makeWorld, { size: 3, mesh }, async (ctx) => {
      const at = ctx.mesh.coordinate;
      const [numQueries, numKeys] = [queries, keys].map(({ spans }) => spansLength(spans(at)));
      using q = randn(ctx, [batch, numHeads, numQueries!, headDim]);
      using k = randn(ctx, [batch, numKvHeads, numKeys!, headDim]);
      using v = randn(ctx, [batch, numKvHeads, numKeys!, valueHeadDim]);
      for (const x of [q, k, v]) x.requiresGrad = true;
      const options = { ...exchangeOptions, ...stageOptions };
      let out: Tensor | undefined;
      const [forward] = await measureTraffic([ctx.world], () => {
        out = attention(ctx, q, k, v, { backend: flex(options), queries, keys });
        return ctx.device.stream.synchronize();
      });
      using dOut = ones(ctx, out!.shape);
      const [backward] = await measureTraffic([ctx.world], () => {
        out!.backward(dOut);
        return ctx.device.stream.synchronize();
      });
      out!.dispose();
      const call = { at, mask: masks.full().slices(8, 60), queries, keys };
      expect({ forward, backward }).toEqual(flexTraffic({ ...sizes, mesh, call, ...options }));
    });
  },
);

test("with queriesTravel, the last queries of a document are sent to its keys", () => {
  const mesh = { sp: 4 };
  const tokens = layoutOf({ mesh, axes: ["sp"], length: 400 });
  // A document of 310 tokens, 10 of them on the last rank.
  const mask = [{ q0: 0, q1: 310, k0: 0, k1: 310, type: "causal" } as const];
  const sizes = { batch: 1, numHeads: 8, numKvHeads: 4, headDim: 64, dtype: "bfloat16" } as const;
  const lastRankOptions = { mesh, ...sizes, call: { at: { sp: 3 }, mask, queries: tokens, keys: tokens } };
  const [q, out, kv] = [8 * 64 * 2, 8 * (64 + 1) * 4, 2 * 4 * 64 * 2];
  expect(flexTraffic(lastRankOptions).forward).toMatchObject({ bytesReceived: 300 * kv, bytesSent: 0 });
  const travelingTraffic = flexTraffic({ ...lastRankOptions, queriesTravel: true }).forward;
  expect(travelingTraffic).toMatchObject({ bytesReceived: 3 * 10 * out, bytesSent: 3 * 10 * q });
});
