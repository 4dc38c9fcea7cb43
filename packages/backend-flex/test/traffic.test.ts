import {
  attendOn,
  backendTrials,
  slicesToMaskMod,
  onWorld,
  placements,
  randomSlices,
  type Trial,
} from "@mosaic/conformance";
import { dtypeBytes, type Layout, layoutOf, positions, type Traffic } from "@mosaic/core";
import { expect, test } from "vitest";
import { flex, flexTraffic } from "../src/index.ts";
import { makeWorld } from "./world.ts";

const stages = [undefined, 0, 1, { forward: 3, backward: 2 }] as const;

/** What one forward and backward of each trial sent, by trial and rank. */
// oxlint-disable-next-line max-params -- ranks, what they do, and how
async function measured(size: number, trials: readonly Trial[], queriesTravel = false): Promise<Traffic[][]> {
  const byRank = await onWorld(makeWorld, { size }, async (ctx) => {
    const traffic: Traffic[] = [];
    for (const [i, trial] of trials.entries()) {
      const before = ctx.world.traffic();
      await attendOn(ctx, flex({ stages: stages[i % stages.length], queriesTravel }), trial);
      traffic.push(combine(ctx.world.traffic(), before, (after, earlier) => after - earlier));
    }
    return traffic;
  });
  return trials.map((_, i) => byRank.map((traffic) => traffic[i]!));
}

/** What the closed form states of it. */
function predicted(trial: Trial, i: number, queriesTravel = false): Traffic[] {
  const { mesh, mask, ...sizes } = trial;
  const [queries, keys] = layouts(trial);
  return Array.from({ length: mesh["sp"]! }, (_, sp) => {
    const call = { at: { sp }, mask, queries, keys };
    const { forward, backward } = flexTraffic({
      ...sizes,
      mesh,
      call,
      queriesTravel,
      stages: stages[i % stages.length],
    });
    return combine(forward, backward, (a, b) => a + b);
  });
}

function layouts({ mesh, axes, ...trial }: Trial): [Layout, Layout] {
  return [layoutOf({ mesh, axes, ...trial.queries }), layoutOf({ mesh, axes, ...trial.keys })];
}

/** Σ over ranks of the rows of others that some query of theirs sees, pair by pair. */
function requiredRows(trial: Trial): number {
  const [queries, keys] = layouts(trial);
  let rows = 0;
  for (let rank = 0; rank < trial.mesh["sp"]!; rank++) {
    const own = [...positions(queries.spans({ sp: rank }))];
    const isOwn = new Set(positions(keys.spans({ sp: rank })));
    for (let k = 0; k < trial.keys.length; k++) {
      if (!isOwn.has(k) && own.some((q) => trial.maskMod(q, k))) rows++;
    }
  }
  return rows;
}

function combine(a: Traffic, b: Traffic, f: (x: number, y: number) => number): Traffic {
  return {
    bytesSent: f(a.bytesSent, b.bytesSent),
    bytesReceived: f(a.bytesReceived, b.bytesReceived),
    messagesSent: f(a.messagesSent, b.messagesSent),
  };
}

for (const size of [1, 2, 3, 5]) {
  test(`${size} ranks: what is sent is what the closed form states, and the required rows, once each`, async () => {
    const dtype = size % 2 ? "float32" : "bfloat16";
    const trials = placements().flatMap((placement) =>
      backendTrials({ mesh: { sp: size }, axes: ["sp"] }, { placement, dtype, seed: 1 }),
    );
    const found = await measured(size, trials);
    for (const [i, trial] of trials.entries()) {
      expect(found[i], trial.name).toEqual(predicted(trial, i));
      const { batch, numKvHeads, headDim } = trial;
      const bytesPerRow = 2 * batch * numKvHeads * headDim * (2 * dtypeBytes[dtype] + dtypeBytes.float32);
      const total = found[i]!.reduce((sum, { bytesSent }) => sum + bytesSent, 0);
      expect(total, trial.name).toBe(requiredRows(trial) * bytesPerRow);
    }
  });
}

test("200 random lists of slices of all types: the rows that are required, and no others", () => {
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
    const received = predicted(trial, seed).reduce((sum, { bytesReceived }) => sum + bytesReceived, 0);
    expect(received, trial.name).toBe(requiredRows(trial) * 2 * 4 * 4 * 3);
  }
});

test.each([2, 3, 5])(
  "%i ranks whose queries travel where that is less: the closed form, and never more bytes",
  async (size) => {
    const trials = placements().flatMap((placement) =>
      backendTrials({ mesh: { sp: size }, axes: ["sp"] }, { placement, dtype: "bfloat16", seed: 1 }),
    );
    const found = await measured(size, trials, true);
    let fewer = 0;
    for (const [i, trial] of trials.entries()) {
      expect(found[i], trial.name).toEqual(predicted(trial, i, true));
      const bytes = (traffic: readonly Traffic[]) => traffic.reduce((sum, { bytesSent }) => sum + bytesSent, 0);
      const keysOnly = bytes(predicted(trial, i));
      expect(bytes(found[i]!), trial.name).toBeLessThanOrEqual(keysOnly);
      if (bytes(found[i]!) < keysOnly) fewer++;
    }
    expect(fewer).toBeGreaterThan(5);
  },
);

test("the rest of a document of many ranks goes to its keys", () => {
  const mesh = { sp: 4 };
  const tokens = layoutOf({ mesh, axes: ["sp"], length: 400 });
  // A document of 310 tokens, 10 of them on the last rank.
  const mask = [{ q0: 0, q1: 310, k0: 0, k1: 310, type: "causal" } as const];
  const sizes = { batch: 1, numHeads: 8, numKvHeads: 4, headDim: 64, dtype: "bfloat16" } as const;
  const last = { mesh, ...sizes, call: { at: { sp: 3 }, mask, queries: tokens, keys: tokens } };
  const [q, out, kv] = [8 * 64 * 2, 8 * (64 + 1) * 4, 2 * 4 * 64 * 2];
  expect(flexTraffic(last).forward).toMatchObject({ bytesReceived: 300 * kv, bytesSent: 0 });
  const travelling = flexTraffic({ ...last, queriesTravel: true }).forward;
  expect(travelling).toMatchObject({ bytesReceived: 3 * 10 * out, bytesSent: 3 * 10 * q });
});
