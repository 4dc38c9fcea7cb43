import { contiguous, masks, striped, zigzag } from "@mosaic/core";
import { expect, test } from "vitest";
import { count, prove, record } from "../src/index.ts";
import { arrangements, ragged } from "./shapes.ts";
import { broadcasting, scattering } from "./third-party.ts";

test("the backend of the README is proved, ragged and for every mask and placement", () => {
  for (const arrangement of arrangements) {
    const run = record({ backend: broadcasting("sp"), mesh: { sp: 5 }, ...ragged, ...arrangement });
    expect(prove(run).violations).toEqual([]);
  }
});

test("so it is around another of its kind, and beside data parallelism", () => {
  const backend = broadcasting("node", broadcasting("gpu"));
  const run = record({
    backend,
    mesh: { dp: 2, node: 2, gpu: 3 },
    ...ragged,
    mask: masks.causal(),
    placement: zigzag(),
  });
  expect(prove(run).violations).toEqual([]);
});

test("its reductions count as a reduceScatter and an allGather", () => {
  const sizes = { tokens: 16, numHeads: 2, headDim: 4, dtype: "float32" } as const;
  const { ranks, chunk } = count(record({ backend: broadcasting("sp"), mesh: { sp: 4 }, ...sizes }));
  // Four broadcasts of K and V, one of them the local one, and 2 · 3/4 of each of four dK and dV.
  expect(ranks[2]!.backward.received.elements / chunk).toBe(2 * 3 + 2 * 4 * 2 * (3 / 4));
});

test.each([1, 2, 8])("gradients that are scattered in %d stretches of columns are followed", (cuts) => {
  for (const placement of [contiguous(), zigzag(), striped()]) {
    for (const mask of [masks.full(), masks.causal()]) {
      const run = record({ backend: scattering({ cuts }), mesh: { sp: 3 }, ...ragged, mask, placement });
      expect(prove(run).violations).toEqual([]);
    }
  }
});

test("means of gradients are no gradients", () => {
  const run = record({ backend: scattering({ op: "mean" }), mesh: { sp: 2 }, ...ragged });
  expect(prove(run).violations[0]!.message).toBe("rank 0, dk: the tensor is not fully initialized");
});

test("a rank that reduces other rows than the rest spoils those, and no more", () => {
  const backend = scattering({
    injectFault(ctx, part) {
      if (ctx.rank !== 1) return;
      using first = part.slice(0, 0, 1);
      using second = part.slice(0, 1, 2);
      ctx.device.kernels.copy(first, second);
    },
  });
  const run = record({ backend, mesh: { sp: 3 }, ...ragged, tokens: 12 });
  expect(prove(run).violations.map(({ message }) => message)).toEqual([
    "rank 0, dk: the tensor is not fully initialized",
    "rank 0, dv: the tensor is not fully initialized",
  ]);
});

test("a rank that forgets its part of a reduction is found, and what is missing named", () => {
  const backend = scattering({
    injectFault(ctx, part) {
      if (ctx.rank === 1) ctx.device.kernels.fill(part, 0);
    },
  });
  const run = record({ backend, mesh: { sp: 3 }, ...ragged, tokens: 12 });
  const messages = prove(run).violations.map(({ message }) => message);
  expect(messages).toHaveLength(6);
  expect(messages[0]).toBe("rank 0, dk: keys 0..3, queries 4..7: 32 visible pairs are missing");
});

test("a rank that reduces what it reduced before counts twice", () => {
  const backend = scattering({
    injectFault(ctx, part) {
      if (ctx.rank === 2) ctx.device.kernels.binary("add", part, part, part);
    },
  });
  const run = record({ backend, mesh: { sp: 3 }, ...ragged, tokens: 12 });
  const [violation] = prove(run).violations;
  expect(violation!.kind).toBe("duplicate");
  expect(violation!.message).toContain(
    "rank 0, dk: rank 2, backward, tile 1 (queries 8..11, keys 0..11) duplicates pairs",
  );
});

test("ranks that disagree about a reduction are found", () => {
  const disagreeing = (op: (rank: number) => "sum" | "max", rows: (rank: number) => number) => {
    const { attendBackward, ...right } = scattering();
    const backend = {
      ...right,
      attendBackward(...[ctx, call, grads, kv]: Parameters<typeof attendBackward>) {
        using x = ctx.device.empty([rows(ctx.rank)], "float32");
        ctx.world.allReduce(x, op(ctx.rank)).wait();
        attendBackward(ctx, call, grads, kv);
      },
    };
    return prove(record({ backend, mesh: { sp: 3 }, ...ragged })).violations[0]!.message;
  };
  expect(
    disagreeing(
      (rank) => (rank === 1 ? "max" : "sum"),
      () => 4,
    ),
  ).toBe("allReduce: reduction mismatch: group rank 1 uses max, group rank 0 uses sum");
  expect(
    disagreeing(
      () => "sum",
      (rank) => 4 + rank,
    ),
  ).toBe("allReduce: size mismatch: group rank 1 has 5 elements, group rank 0 has 4");
});
