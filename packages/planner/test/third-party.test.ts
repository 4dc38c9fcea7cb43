import { contiguous, masks, striped, zigzag } from "@mosaic/core";
import { expect, test } from "vitest";
import { count, prove, record } from "../src/index.ts";
import { arrangements, raggedSizes } from "./shapes.ts";
import { broadcastingBackend, scatteringBackend } from "./third-party.ts";

test("the backend of the README is proved correct for ragged sizes and every mask and placement", () => {
  for (const arrangement of arrangements) {
    const attentionRecord = record({
      backend: broadcastingBackend("sp"),
      mesh: { sp: 5 },
      ...raggedSizes,
      ...arrangement,
    });
    expect(prove(attentionRecord).violations).toEqual([]);
  }
});

test("the backend of the README is proved correct nested in itself and beside data parallelism", () => {
  const backend = broadcastingBackend("node", broadcastingBackend("gpu"));
  const attentionRecord = record({
    backend,
    mesh: { dp: 2, node: 2, gpu: 3 },
    ...raggedSizes,
    mask: masks.causal(),
    placement: zigzag(),
  });
  expect(prove(attentionRecord).violations).toEqual([]);
});

test("the reductions of the README's backend count as a reduceScatter and an allGather", () => {
  const sizes = { tokens: 16, numHeads: 2, headDim: 4, dtype: "float32" } as const;
  const { ranks, chunk } = count(record({ backend: broadcastingBackend("sp"), mesh: { sp: 4 }, ...sizes }));
  // Four broadcasts of K and V, one of them the local one, and 2 · 3/4 of each of four dK and dV.
  expect(ranks[2]!.backward.received.elements / chunk).toBe(2 * 3 + 2 * 4 * 2 * (3 / 4));
});

test.each([1, 2, 8])("prove follows gradients that are scattered in %d ranges of columns", (cuts) => {
  for (const placement of [contiguous(), zigzag(), striped()]) {
    for (const mask of [masks.full(), masks.causal()]) {
      const attentionRecord = record({
        backend: scatteringBackend({ numCuts: cuts }),
        mesh: { sp: 3 },
        ...raggedSizes,
        mask,
        placement,
      });
      expect(prove(attentionRecord).violations).toEqual([]);
    }
  }
});

test("prove reports gradients that are averaged instead of summed", () => {
  const attentionRecord = record({ backend: scatteringBackend({ op: "mean" }), mesh: { sp: 2 }, ...raggedSizes });
  expect(prove(attentionRecord).violations[0]!.message).toBe("rank 0, dk: the tensor is not fully initialized");
});

test("prove reports only the affected rows if a rank reduces different rows than the others", () => {
  const backend = scatteringBackend({
    injectFault(ctx, part) {
      if (ctx.rank !== 1) return;
      using first = part.slice(0, 0, 1);
      using second = part.slice(0, 1, 2);
      ctx.device.kernels.copy(first, second);
    },
  });
  const attentionRecord = record({ backend, mesh: { sp: 3 }, ...raggedSizes, tokens: 12 });
  expect(prove(attentionRecord).violations.map(({ message }) => message)).toEqual([
    "rank 0, dk: the tensor is not fully initialized",
    "rank 0, dv: the tensor is not fully initialized",
  ]);
});

test("prove reports a rank that omits its part of a reduction, and the missing pairs", () => {
  const backend = scatteringBackend({
    injectFault(ctx, part) {
      if (ctx.rank === 1) ctx.device.kernels.fill(part, 0);
    },
  });
  const attentionRecord = record({ backend, mesh: { sp: 3 }, ...raggedSizes, tokens: 12 });
  const messages = prove(attentionRecord).violations.map(({ message }) => message);
  expect(messages).toHaveLength(6);
  expect(messages[0]).toBe("rank 0, dk: keys 0..3, queries 4..7: 32 visible pairs are missing");
});

test("prove reports a duplicate if a rank adds its part of a reduction twice", () => {
  const backend = scatteringBackend({
    injectFault(ctx, part) {
      if (ctx.rank === 2) ctx.device.kernels.binary("add", part, part, part);
    },
  });
  const attentionRecord = record({ backend, mesh: { sp: 3 }, ...raggedSizes, tokens: 12 });
  const [violation] = prove(attentionRecord).violations;
  expect(violation!.kind).toBe("duplicate");
  expect(violation!.message).toContain(
    "rank 0, dk: rank 2, backward, tile 1 (queries 8..11, keys 0..11) duplicates pairs",
  );
});

test("prove reports ranks that disagree on the operation or the size of a reduction", () => {
  const proveDisagreement = (getOp: (rank: number) => "sum" | "max", getNumRows: (rank: number) => number) => {
    const { attendBackward, ...otherFields } = scatteringBackend();
    const backend = {
      ...otherFields,
      attendBackward(...[ctx, call, grads, kv]: Parameters<typeof attendBackward>) {
        using x = ctx.device.empty([getNumRows(ctx.rank)], "float32");
        ctx.world.allReduce(x, getOp(ctx.rank)).wait();
        attendBackward(ctx, call, grads, kv);
      },
    };
    return prove(record({ backend, mesh: { sp: 3 }, ...raggedSizes })).violations[0]!.message;
  };
  expect(
    proveDisagreement(
      (rank) => (rank === 1 ? "max" : "sum"),
      () => 4,
    ),
  ).toBe("allReduce: reduction mismatch: group rank 1 uses max, group rank 0 uses sum");
  expect(
    proveDisagreement(
      () => "sum",
      (rank) => 4 + rank,
    ),
  ).toBe("allReduce: size mismatch: group rank 1 has 5 elements, group rank 0 has 4");
});
