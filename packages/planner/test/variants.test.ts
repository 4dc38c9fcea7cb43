import { flex } from "@mosaic/backend-flex";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring, ringTraffic } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { type AttentionBackend, type Coordinate, local, masks } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { count, predict, profiles, prove, record, recordRepresentatives, type RecordOptions } from "../src/index.ts";
import { placements } from "./shapes.ts";

// Variants of attention: what is recorded, proved and counted of them.

const sizes = { tokens: 67, numHeads: 4, numKvHeads: 2, headDim: 12, batch: 2 };
const variants: readonly Partial<RecordOptions>[] = [
  { softcap: 30, alibiSlopes: true, dropout: 0.1 },
  { valueHeadDim: 8 },
  { valueHeadDim: 20, softcap: 30, alibiSlopes: true, dropout: 0.1 },
];

const arrangements: readonly { name: string; backend: AttentionBackend; mesh: Coordinate }[] = [
  { name: "local", backend: local(), mesh: { dp: 2 } },
  { name: "ring of 5", backend: ring(), mesh: { sp: 5 } },
  { name: "ring in ring", backend: ring({ axis: "node", inner: ring({ axis: "gpu" }) }), mesh: { node: 2, gpu: 3 } },
  { name: "mesh2d", backend: mesh2d({ shape: [2, 3], schedule: "overlapped" }), mesh: { sp: 6 } },
  { name: "mesh2d, fused", backend: mesh2d({ shape: [3, 2], schedule: "fused" }), mesh: { sp: 6 } },
  { name: "ulysses", backend: ulysses(), mesh: { sp: 3 } },
  { name: "flex", backend: flex({ stages: 2 }), mesh: { sp: 4 } },
  { name: "flex whose queries travel", backend: flex({ queriesTravel: true }), mesh: { sp: 4 } },
];

describe.each(arrangements)("$name", ({ backend, mesh }) => {
  test.each(placements)("is proved right for every variant, placed $name", (placement) => {
    for (const variant of variants) {
      const run = record({ backend, mesh, placement, mask: masks.causal(), ...sizes, ...variant });
      expect(prove(run).violations).toEqual([]);
    }
  });
});

test("values of another head size count with theirs, and modifiers not at all", () => {
  const options = { backend: ring(), mesh: { sp: 4 }, mask: masks.full(), ...sizes } as const;
  const plain = count(record(options));
  expect(count(record({ ...options, ...variants[0] })).ranks).toEqual(plain.ranks);
  const run = record({ ...options, valueHeadDim: 20 });
  const { batch, numKvHeads, headDim } = sizes;
  for (const [sp, { forward, backward }] of count(run).ranks.entries()) {
    const call = { at: { sp }, queries: run.queries, keys: run.keys, mask: run.slices };
    const width = (batch * numKvHeads * (headDim + 20)) / 2;
    const traffic = ringTraffic({ mesh: { sp: 4 }, call, width, dtype: "bfloat16" });
    expect([forward.sent.bytes, backward.sent.bytes]).toEqual([traffic.forward.bytesSent, traffic.backward.bytesSent]);
  }
});

test("values of half the head size take away their share of the products, and no more", () => {
  const options = { backend: local(), mesh: { dp: 1 }, tokens: 8192, numHeads: 8, headDim: 128 } as const;
  const time = (valueHeadDim: number) => predict({ ...options, valueHeadDim }, profiles["h100-ib400"]).seconds;
  const [half, whole] = [time(64), time(128)];
  // Two of seven products of a forward and a backward have the size of keys alone twice: 2·(D + Dv) + 2·(3·D + 2·Dv).
  expect(half).toBeLessThan(whole);
  expect(half).toBeGreaterThan((11 / 14) * whole);
});

test("classes of ranks are found with values of another head size", () => {
  const options = { backend: ring(), mesh: { sp: 6 }, ...sizes, tokens: 66, valueHeadDim: 8, mask: masks.full() };
  const run = recordRepresentatives(options);
  expect(run.ranks.length).toBeLessThan(6);
  expect(prove(run).violations).toEqual([]);
});
