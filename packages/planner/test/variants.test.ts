import { flex, flexTraffic } from "@mosaic/backend-flex";
import { mesh2d, mesh2dTraffic } from "@mosaic/backend-mesh2d";
import { ring, ringTraffic } from "@mosaic/backend-ring";
import { ulysses, ulyssesTraffic } from "@mosaic/backend-ulysses";
import { world } from "@mosaic/collectives-local";
import {
  attention,
  type AttentionBackend,
  type Coordinate,
  layoutOf,
  local,
  masks,
  spansLength,
  type Tensor,
  type TraceEvent,
  type Traffic,
  zeros,
} from "@mosaic/core";
import type { CallTraffic, TrafficOptions } from "@mosaic/core/context-parallel";
import { cpu } from "@mosaic/kernels-cpu";
import { describe, expect, test } from "vitest";
import {
  count,
  predict,
  profiles,
  prove,
  type RankTraffic,
  type RecordedRank,
  record,
  recordRepresentatives,
  type RecordOptions,
} from "../src/index.ts";
import { proveRepresentatives } from "../src/prove/prove.ts";
import { placements } from "./shapes.ts";

// Variants of attention, as they are recorded, proved and counted.

const sizes = { tokens: 67, numHeads: 4, numKvHeads: 2, headDim: 12, batch: 2 };
const variants: readonly Partial<RecordOptions>[] = [
  { softcap: 30, alibiSlopes: true, dropout: 0.1 },
  { valueHeadDim: 8 },
  { valueHeadDim: 20, softcap: 30, alibiSlopes: true, dropout: 0.1 },
  { sinks: true },
  { valueHeadDim: 8, softcap: 30, sinks: true },
];

/** Sizes of a call. */
type ClosedFormSizes = Readonly<Record<"batch" | "numHeads" | "numKvHeads" | "headDim" | "valueHeadDim", number>>;

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
  test.each(placements)("is proved correct for every variant, with $name placement", (placement) => {
    for (const variant of variants) {
      const attentionRecord = record({ backend, mesh, placement, mask: masks.causal(), ...sizes, ...variant });
      expect(prove(attentionRecord).violations).toEqual([]);
    }
  });
});

test("modifiers of scores do not change the traffic", () => {
  const options = { backend: ring(), mesh: { sp: 4 }, mask: masks.full(), ...sizes } as const;
  expect(count(record({ ...options, ...variants[0] })).ranks).toEqual(count(record(options)).ranks);
});

/** Closed forms by backend, for the recorded call on one rank. */
const closedForms: Readonly<Record<string, (options: TrafficOptions & ClosedFormSizes) => CallTraffic>> = {
  ring: ({ mesh, call, dtype, batch, numKvHeads, headDim, valueHeadDim }) => {
    const heads = batch * numKvHeads;
    return ringTraffic({ mesh, call, dtype, width: heads * headDim, valueWidth: heads * valueHeadDim });
  },
  mesh2d: (options) => mesh2dTraffic({ ...options, shape: [2, 3] }),
  "mesh2d, fused": (options) => mesh2dTraffic({ ...options, shape: [3, 2] }),
  ulysses: ulyssesTraffic,
  flex: (options) => flexTraffic({ ...options, stages: 2 }),
  "flex whose queries travel": (options) => flexTraffic({ ...options, queriesTravel: true }),
};

describe.each(Object.entries(closedForms))("%s", (name, closedForm) => {
  test.each([8, 20])(
    "has traffic equal to the closed form for values of head size %i and keys of 12",
    (valueHeadDim) => {
      const { backend, mesh } = arrangements.find((each) => each.name.startsWith(name))!;
      for (const [i, mask] of [masks.full(), masks.causal()].entries()) {
        const placement = placements[i]!;
        const attentionRecord = record({ backend, mesh, mask, placement, ...sizes, valueHeadDim });
        for (const [sp, { forward, backward }] of count(attentionRecord).ranks.entries()) {
          const call = {
            at: { sp },
            queries: attentionRecord.queries,
            keys: attentionRecord.keys,
            mask: attentionRecord.slices,
          };
          const { batch, numHeads, numKvHeads, headDim } = sizes;
          const shape = { batch, numHeads, numKvHeads, headDim, valueHeadDim };
          const traffic = closedForm({ mesh, call, dtype: "bfloat16", ...shape });
          expect(sumTraffic(forward), `forward, ${mask.name}, rank ${sp}`).toEqual(traffic.forward);
          expect(sumTraffic(backward), `backward, ${mask.name}, rank ${sp}`).toEqual(traffic.backward);
        }
      }
    },
  );
});

function sumTraffic({ sent, received }: RankTraffic): Traffic {
  return { bytesSent: sent.bytes, bytesReceived: received.bytes, messagesSent: sent.messages };
}

test("values of half the head size reduce the time by at most their share of the products", () => {
  const options = { backend: local(), mesh: { dp: 1 }, tokens: 8192, numHeads: 8, headDim: 128 } as const;
  const predictSeconds = (valueHeadDim: number) =>
    predict({ ...options, valueHeadDim }, profiles["h100-ib400"]).seconds;
  const [halfSeconds, fullSeconds] = [predictSeconds(64), predictSeconds(128)];
  // Of the seven products of a forward and a backward, four have the head size of keys and three that of values: 2·(D +
  // Dv) + 2·(3·D + 2·Dv).
  expect(halfSeconds).toBeLessThan(fullSeconds);
  expect(halfSeconds).toBeGreaterThan((11 / 14) * fullSeconds);
});

test("equivalence classes are found for values of a different head size", () => {
  const options = { backend: ring(), mesh: { sp: 6 }, ...sizes, tokens: 66, valueHeadDim: 8, mask: masks.full() };
  const attentionRecord = recordRepresentatives(options);
  expect(attentionRecord.ranks.length).toBeLessThan(6);
  expect(prove(attentionRecord).violations).toEqual([]);
});

test("equivalence classes are proved correct with sinks", () => {
  const attentionRecord = recordRepresentatives({
    backend: ring(),
    mesh: { sp: 6 },
    ...sizes,
    tokens: 66,
    sinks: true,
  });
  expect(attentionRecord.ranks.length).toBeLessThan(6);
  expect(proveRepresentatives(attentionRecord, 3, [1, 4]).violations).toEqual([]);
});

test("prove reports sinks that are not merged into every row, in the output and in the backward", () => {
  const attentionRecord = record({ backend: ring(), mesh: { sp: 2 }, ...sizes });
  const { violations } = prove({ ...attentionRecord, options: { ...attentionRecord.options, sinks: true } });
  expect(violations.map(({ kind }) => kind)).toEqual(["missing", "missing", "missing", "missing"]);
  expect(violations[0]!.message).toMatch(/lse: attention sinks: expected one contribution per head, received 0/);
});

/** Kernels for which attention has events of its own. All others count as one kind. */
const namedKernels = new Set(["attend", "attendBackward", "merge", "rowDot", "copy"]);
const getKernelKind = (kernel: string): string => (namedKernels.has(kernel) ? kernel : "other");

/** Returns the kernels of a recorded rank in order, without fills. */
function listRecordedKernels({ tape }: RecordedRank): string[] {
  const kernels: string[] = [];
  const event = tape.read();
  while (event.next())
    if (namedKernels.has(event.op) || ["add", "compute"].includes(event.op)) kernels.push(getKernelKind(event.op));
  return kernels;
}

test("sinks cause no traffic, and recorded kernels and bytes equal the measured ones", async () => {
  const [mesh, mask] = [{ sp: 3 }, masks.causal()];
  const attentionRecord = record({ backend: ring(), mesh, mask, ...sizes, dtype: "float32", sinks: true });
  const rankTraffic = count(attentionRecord).ranks;
  expect(rankTraffic).toEqual(count(record({ ...attentionRecord.options, sinks: false })).ranks);
  const contexts = await world(3, { mesh, device: () => cpu({ threads: 1 }) });
  const { batch, numHeads, numKvHeads, headDim, tokens } = sizes;
  const layout = layoutOf({ mesh, axes: ["sp"], length: tokens });
  for (const { device } of contexts) device.startTrace();
  for (const ctx of contexts) {
    const rows = spansLength(layout.spans(ctx.mesh.coordinate));
    const createInput = (heads: number): Tensor => zeros(ctx, [batch, heads, rows, headDim]);
    using q = createInput(numHeads);
    using k = createInput(numKvHeads);
    using v = createInput(numKvHeads);
    using dOut = createInput(numHeads);
    using sinks = zeros(ctx, [numHeads]);
    for (const x of [q, k, v, sinks]) x.requiresGrad = true;
    using out = attention(ctx, q, k, v, { backend: ring(), mask, sinks, queries: layout, keys: layout });
    out.backward(dOut);
  }
  for (const [rank, ctx] of contexts.entries()) {
    const events = await ctx.device.stopTrace();
    const isKernel = ({ lane, name }: TraceEvent): boolean =>
      lane === "compute" && name !== "fill" && !name.startsWith("collective");
    expect(events.filter(isKernel).map(({ name }) => getKernelKind(name))).toEqual(
      listRecordedKernels(attentionRecord.ranks[rank]!),
    );
    const { forward, backward } = rankTraffic[rank]!;
    expect(ctx.mesh.group("sp").traffic()).toEqual({
      bytesSent: forward.sent.bytes + backward.sent.bytes,
      bytesReceived: forward.received.bytes + backward.received.bytes,
      messagesSent: forward.sent.messages + backward.sent.messages,
    });
  }
  expect(listRecordedKernels(attentionRecord.ranks[0]!).filter((kernel) => kernel === "merge")).toHaveLength(1);
  await Promise.all(contexts.map((ctx) => ctx.close()));
});
