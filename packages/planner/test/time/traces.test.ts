import { ring } from "@mosaic/backend-ring";
import { world } from "@mosaic/collectives-local";
import { attention, type Context, contiguous, layoutOf, masks, randn, type TraceEvent } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { expect, test } from "vitest";
import { profiles, record, simulate, timelineOf } from "../../src/index.ts";

test("timelineOf returns seconds from the first event of any rank, with sorted ranks and events", () => {
  const createKernelEvent = (start: number, end: number): TraceEvent => ({
    lane: "compute",
    name: "attend",
    start,
    end,
  });
  const message = {
    lane: "communication",
    name: "sendRecv",
    label: "ring(sp)",
    bytesSent: 8,
    bytesReceived: 4,
  } as const;
  const timeline = timelineOf([
    { rank: 1, at: { sp: 1 }, events: [createKernelEvent(4e9, 5e9), { ...message, start: 3e9, end: 6e9 }] },
    {
      rank: 0,
      at: { sp: 0 },
      events: [createKernelEvent(2e9, 4e9), { ...createKernelEvent(4e9, 5e9), name: "collective wait" }],
    },
  ]);
  expect(timeline).toEqual({
    seconds: 4,
    ranks: [
      { rank: 0, at: { sp: 0 }, events: [{ lane: "compute", name: "attend", start: 0, end: 2 }] },
      {
        rank: 1,
        at: { sp: 1 },
        events: [
          { ...message, start: 1, end: 4 },
          { lane: "compute", name: "attend", start: 2, end: 3 },
        ],
      },
    ],
  });
  expect(timelineOf([])).toEqual({ seconds: 0, ranks: [] });
});

test("timelineOf shifts events and memory by the clock offset, and adds the errors of the two least exact hosts", () => {
  const event: TraceEvent = { lane: "compute", name: "attend", start: 1e9, end: 2e9 };
  const errors = [0, 3e6, 5e6, 2e6];
  const traces = errors.map((error, rank) => ({
    ...{ rank, at: { sp: rank }, clock: { offset: -rank * 1e9, error } },
    events: [{ ...event, start: event.start + rank * 1e9, end: event.end + rank * 1e9 }],
    memory: [{ time: (2 + rank) * 1e9, bytes: 7 }],
  }));
  const { clockError, ranks } = timelineOf(traces);
  expect(clockError).toBeCloseTo(0.008, 12);
  for (const { events, memory } of ranks) {
    expect(events).toEqual([{ ...event, start: 0, end: 1 }]);
    expect(memory).toEqual([{ time: 1, bytes: 7 }]);
  }
});

test("a measured run has the same events on each rank as the predicted run", async () => {
  const sizes = { tokens: 48, numHeads: 2, headDim: 8 };
  const mesh = { sp: 3 };
  const predicted = simulate(record({ ...sizes, backend: ring(), mesh, dtype: "float32" }), profiles["cpu-local"]);
  const contexts = await world(3, { device: () => cpu({ threads: 1 }), mesh });
  const traces = await traceRing(contexts, sizes);
  const measured = timelineOf(
    contexts.map(({ rank, mesh: { coordinate: at } }, i) => ({ rank, at, events: traces[i]! })),
  );
  for (const [rank, { at, events }] of predicted.ranks.entries()) {
    expect(measured.ranks[rank]!.at).toEqual(at);
    for (const lane of ["compute", "communication"] as const) {
      const listNames = (rankEvents: typeof events) =>
        rankEvents.filter((event) => event.lane === lane).map(({ name }) => name);
      expect(listNames(measured.ranks[rank]!.events)).toEqual(listNames(events));
    }
    const countBytesSent = (rankEvents: typeof events) =>
      rankEvents.reduce((sum, { bytesSent }) => sum + (bytesSent ?? 0), 0);
    expect(countBytesSent(measured.ranks[rank]!.events)).toBe(countBytesSent(events));
  }
  await Promise.all(contexts.map((ctx) => ctx.close()));
});

/** Runs attention, forward and backward, on every rank, as `record` does. */
async function traceRing(
  contexts: readonly Context[],
  { tokens, numHeads, headDim }: { readonly tokens: number; readonly numHeads: number; readonly headDim: number },
): Promise<(readonly TraceEvent[])[]> {
  const layout = layoutOf({ mesh: { sp: 3 }, axes: ["sp"], placement: contiguous(), length: tokens });
  const createOperand = (ctx: Context) => randn(ctx, [1, numHeads, tokens / 3, headDim]);
  const operands = contexts.map(
    (ctx) => [createOperand(ctx), createOperand(ctx), createOperand(ctx), createOperand(ctx)] as const,
  );
  await Promise.all(contexts.map((ctx) => ctx.device.stream.synchronize()));
  for (const [i, ctx] of contexts.entries()) {
    const [q, k, v, dOut] = operands[i]!;
    for (const input of [q, k, v]) input.requiresGrad = true;
    ctx.startTrace();
    const out = attention(ctx, q, k, v, { backend: ring(), mask: masks.full(), queries: layout, keys: layout });
    out.backward(dOut);
  }
  await Promise.all(contexts.map((ctx) => ctx.device.stream.synchronize()));
  return await Promise.all(contexts.map((ctx) => ctx.stopTrace()));
}
