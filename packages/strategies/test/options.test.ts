import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { runOnWorld } from "@mosaic/conformance";
import {
  attention,
  type AttentionBackend,
  type Context,
  type Coordinate,
  layoutOf,
  MultiAxisAttention,
  OptionError,
  randn,
} from "@mosaic/core";
import { expect, test } from "vitest";
import {
  composed,
  ComposedAttention,
  type ComposedOptions,
  hierarchical,
  HierarchicalAttention,
  type HierarchicalOptions,
  type Strategy,
} from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

test("axes lists the axes of a strategy from the outer to the inner", () => {
  expect(ComposedAttention({ meshShape: { head: 2, seq: 4 } }).axes).toEqual(["seq", "head"]);
  expect(ComposedAttention({ meshShape: { head: 1, seq: 4 }, headParallel: false }).axes).toEqual(["seq"]);
  expect(composed({ meshShape: { head: 2, seq: 4 }, axes: { seq: "node", head: "gpu" } }).axes).toEqual([
    "node",
    "gpu",
  ]);
  expect(HierarchicalAttention({ intraNodeSize: 8 }).axes).toEqual(["node", "gpu"]);
  expect(hierarchical({ intraNodeSize: 8, interNodeStrategy: "ulysses" }).axes).toEqual(["gpu", "node"]);
  expect(hierarchical({ intraNodeSize: 8, axes: { node: "rack" } }).axes).toEqual(["rack", "gpu"]);
});

test("the description names the nested backends; local gathers all required keys first", () => {
  expect(hierarchical({ intraNodeSize: 2, intraNodeStrategy: "local" }).description).toBe(
    "hierarchical: ring(node, flex(gpu, stages 0/0))",
  );
  expect(composed({ meshShape: { head: 2, seq: 2 }, seqParallel: "flex" }).description).toBe(
    "composed: ulysses(head, flex(seq))",
  );
});

test("a function that creates a backend is accepted as a strategy", () => {
  const createdLevels: (readonly [string, readonly string[]])[] = [];
  const tiledStrategy = composed({
    meshShape: { head: 2, seq: 4 },
    seqParallel(axis, inner) {
      createdLevels.push([axis, inner.axes]);
      return mesh2d({ axis, inner, shape: [2, 2] });
    },
  });
  expect(tiledStrategy.axes).toEqual(["seq", "head"]);
  expect(createdLevels).toEqual([["seq", []]]);
});

test("a strategy that omits its axis or its inner backend is rejected when it is created", () => {
  const remedy = "pass both arguments of the strategy on, as in (axis, inner) => ring({ axis, inner })";
  expect(() => hierarchical({ intraNodeSize: 2, interNodeStrategy: (axis) => ring({ axis }) })).toThrow(
    `hierarchical: expected a backend along node, gpu, received ring(node), along node; ${remedy}`,
  );
  const meshShape = { head: 2, seq: 2 };
  expect(() => composed({ meshShape, seqParallel: (_, inner) => inner })).toThrow(
    `composed: seqParallel: expected a backend along seq, received local, along no axis; ${remedy}`,
  );
  expect(() => composed({ meshShape, seqParallel: (_, inner) => ring({ inner }) })).toThrow(
    `composed: seqParallel: expected a backend along seq, received ring(sp), along sp; ${remedy}`,
  );
  const withAnotherAxis = (axis: string, inner: AttentionBackend) =>
    ring({ axis: "other", inner: ring({ axis, inner }) });
  expect(() => composed({ meshShape, seqParallel: withAnotherAxis })).toThrow(
    `composed: seqParallel: expected a backend along seq, received ring(other, ring(seq)), along other, seq; ${remedy}`,
  );
});

test("meshFor returns the mesh to pass to init", () => {
  expect(composed({ meshShape: { head: 2, seq: 4 } }).meshFor(8)).toEqual({ seq: 4, head: 2 });
  expect(composed({ meshShape: { head: 1, seq: 4 }, headParallel: false }).meshFor(4)).toEqual({ seq: 4 });
  expect(hierarchical({ intraNodeSize: 8 }).meshFor(24)).toEqual({ node: 3, gpu: 8 });
  expect(() => composed({ meshShape: { head: 2, seq: 4 } }).meshFor(6)).toThrow(
    "expected 8 ranks, 2 for heads × 4 for the sequence, received 6",
  );
  expect(() => hierarchical({ intraNodeSize: 8 }).meshFor(0)).toThrow(
    /hierarchical: expected a multiple of 8 ranks, received 0 ranks/,
  );
  expect(() => hierarchical({ intraNodeSize: 8 }).meshFor(12)).toThrow(
    "expected a multiple of 8 ranks, received 12 ranks",
  );
});

test("composed and hierarchical reject unknown and invalid options", () => {
  const invalidOptions: [unknown, RegExp][] = [
    [{ meshShape: { head: 2, seq: 2 }, seqParalel: "ring" }, /expected options among .*seqParallel.*"seqParalel"/],
    [
      { meshShape: { head: 2, seq: 2 }, seqParallel: "rings" },
      /"ring", "mesh2d", "ulysses", "flex", "local" or .*received "rings"/,
    ],
    [{ meshShape: { head: 2, seq: 2 }, seqParallel: "none" }, /received "none".*so that the result is exact/],
    [{ meshShape: { head: 2, seq: 2 }, axes: { heads: "x" } }, /axes.*"heads"/],
    [{ meshShape: [2, 2] }, /meshShape: expected \{ head, seq \}.*received \[2,2\]/],
    [{ meshShape: 4 }, /meshShape.*received 4/],
    [{ meshShape: { head: 2, seq: 1.5 } }, /received 1.5/],
    [{ meshShape: { head: 2, seq: 2 }, headParallel: false }, /headParallel true, or meshShape \{ head: 1, seq \}/],
    [{ meshShape: { head: 2, seq: 2 }, axes: { head: "x", seq: "x" } }, /a separate mesh axis/],
  ];
  for (const [options, message] of invalidOptions) {
    expect(() => composed(options as ComposedOptions)).toThrow(OptionError);
    expect(() => composed(options as ComposedOptions)).toThrow(message);
  }
  const otherInvalidOptions: [unknown, RegExp][] = [
    [{ intraNodeSize: 0 }, /intraNodeSize.*received 0/],
    [{ intraNodeSize: 2, intraNodeStrategy: "gather" }, /received "gather"/],
    [{ intraNodeSize: 2, interNodeStrategy: "mesh2d" }, /mesh2d\(node\): .*ring along gpu.*swap the nesting/],
    [{ intraNodeSize: 2, intraNode: "ring" }, /"intraNode"/],
  ];
  for (const [options, message] of otherInvalidOptions) {
    expect(() => hierarchical(options as HierarchicalOptions)).toThrow(OptionError);
    expect(() => hierarchical(options as HierarchicalOptions)).toThrow(message);
  }
});

/** Returns the error on each rank of a mesh, and checks that nothing was sent. */
async function collectErrors(mesh: Coordinate, strategy: Strategy): Promise<string[]> {
  const size = Object.values(mesh).reduce((product, length) => product * length, 1);
  return runOnWorld(makeWorld, { size, mesh }, async (ctx) => {
    const message = getCallError(ctx, strategy);
    expect(ctx.world.traffic().messagesSent).toBe(0);
    return message;
  });
}

function getCallError(ctx: Context, strategy: Strategy): string {
  const axes = strategy.axes.filter((axis) => axis in ctx.mesh.shape);
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes, length: 12 });
  const q = randn(ctx, [1, 2, 3, 4]);
  const call = { q, at: ctx.mesh.coordinate, scale: 1, mask: [], queries: layout, keys: layout };
  const kv = { k: q, v: q, from: ctx.mesh.coordinate };
  const savedRows = { dOut: q, lse: q, delta: q };
  const messages = [
    () => strategy.attend(ctx, call, { out: q, lse: q }, kv),
    () => strategy.attendBackward(ctx, { ...call, ...savedRows }, { dq: q, dk: q, dv: q }, kv),
  ].map((run) => {
    try {
      run();
    } catch (error) {
      expect(error).toBeInstanceOf(OptionError);
      return (error as Error).message;
    }
    return "nothing";
  });
  expect(messages[1]).toBe(messages[0]);
  return messages[0]!;
}

test("the error for another mesh names the mesh to pass to init", async () => {
  const [missingAxisError] = await collectErrors({ sp: 4 }, composed({ meshShape: { head: 2, seq: 2 } }));
  expect(missingAxisError).toBe(
    "composed, rank 0: expected a mesh with { seq: 2, head: 2 }, received the mesh { sp: 4 }; " +
      "call init({ mesh: { seq: 2, head: 2 } })",
  );
  const swappedAxesErrors = await collectErrors(
    { dp: 2, head: 1, seq: 2 },
    composed({ meshShape: { head: 2, seq: 1 } }),
  );
  expect(swappedAxesErrors[3]).toContain("rank 3: expected a mesh with { seq: 1, head: 2 }");
  expect(swappedAxesErrors[3]).toContain("init({ mesh: { dp: 2, seq: 1, head: 2 } })");
  const [sizes] = await collectErrors({ node: 2, gpu: 2 }, hierarchical({ intraNodeSize: 4 }));
  expect(sizes).toContain("init({ mesh: { node: 1, gpu: 4 } })");
});

test("attention calls and module constructors throw the same error for another mesh and send nothing", async () => {
  const strategy = composed({
    meshShape: { head: 2, seq: 2 },
    seqParallel: (axis, inner) => mesh2d({ axis, inner, shape: [3, 1] }),
  });
  const remedy = "init({ mesh: { seq: 2, head: 2 } })";
  await runOnWorld(makeWorld, { size: 4, mesh: { sp: 4 } }, async (ctx) => {
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 12 });
    const q = randn(ctx, [1, 2, 3, 4]);
    const call = () => attention(ctx, q, q, q, { backend: strategy, queries: layout, keys: layout });
    const options = { embedDim: 8, numHeads: 2, attentionAxis: 1, backend: strategy } as const;
    for (const createOrCall of [call, () => new MultiAxisAttention(ctx, options)]) {
      expect(createOrCall).toThrow(`composed, rank ${ctx.rank}: expected a mesh with { seq: 2, head: 2 }`);
      expect(createOrCall).toThrow(remedy);
    }
    expect(ctx.world.traffic().messagesSent).toBe(0);
  });
  await runOnWorld(makeWorld, { size: 4, mesh: { seq: 2, head: 2 } }, async (ctx) => {
    // The nested backends are checked, too.
    expect(() => strategy.check?.(ctx)).toThrow(
      /mesh2d\(seq\), rank \d: expected a grid of 2 ranks, received \[3, 1\]/,
    );
  });
});

test("hierarchical rejects a mesh whose gpu axis connects ranks of different nodes", async () => {
  const [message] = await collectErrors({ gpu: 2, node: 2 }, hierarchical({ intraNodeSize: 2 }));
  expect(message).toBe(
    "hierarchical, rank 0: expected a mesh with { node: 2, gpu: 2 }, received a mesh in which gpu connects ranks 0, 2, " +
      "which are not consecutive ranks of one node; call init({ mesh: { node: 2, gpu: 2 } })",
  );
});

test("between nodes, ranks communicate with ranks at the same place in their nodes", async () => {
  const strategy = hierarchical({ intraNodeSize: 3 });
  await runOnWorld(makeWorld, { size: 6, mesh: strategy.meshFor(6) }, async (ctx) => {
    const rankPosition = ctx.rank % 3;
    expect(ctx.mesh.group("node").ranks).toEqual([rankPosition, rankPosition + 3]);
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: strategy.axes, length: 12 });
    using x = randn(ctx, [1, 2, 2, 4]);
    using out = attention(ctx, x, x, x, { backend: strategy, queries: layout, keys: layout });
    expect((await out.read()).every(Number.isFinite)).toBe(true);
  });
});
