import { runOnWorld, validationSuite } from "@mosaic/conformance";
import { attention, layoutOf, local, randn } from "@mosaic/core";
import { expect, test } from "vitest";
import { ulysses } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(
  validationSuite({ makeWorld, backend: (axis) => ulysses({ axis }), nest: (axis, inner) => ulysses({ axis, inner }) }),
);

test("rejects an axis of the inner backend that the mesh does not have", async () => {
  const messageCounts = await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    const backend = ulysses({ inner: { ...local(), axes: ["node"] } });
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 10 });
    const x = randn(ctx, [1, 2, 5, 4]);
    const message = `ulysses(sp), rank ${ctx.rank}: expected one of the mesh's axes sp, received "node"`;
    expect(() => attention(ctx, x, x, x, { backend, queries: layout, keys: layout })).toThrow(message);
    const call = { q: x, at: ctx.mesh.coordinate, scale: 1, mask: [], queries: layout, keys: layout };
    const state = { out: x, lse: x };
    expect(() => backend.attend(ctx, call, state, { k: x, v: x, from: call.at })).toThrow(message);
    return ctx.world.traffic().messagesSent;
  });
  expect(messageCounts).toEqual([0, 0]);
});

test("rejects axes in an order other than that in which rows are concatenated", async () => {
  const messageCounts = await runOnWorld(makeWorld, { size: 2, mesh: { node: 1, gpu: 2 } }, async (ctx) => {
    const backend = ulysses({ axis: "gpu", inner: ulysses({ axis: "node" }) });
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["gpu", "node"], length: 10 });
    const x = randn(ctx, [1, 2, 5, 4]);
    expect(() => attention(ctx, x, x, x, { backend, queries: layout, keys: layout })).toThrow(
      `ulysses(gpu), rank ${ctx.rank}: expected queries sharded along node, gpu, in this order`,
    );
    return ctx.world.traffic().messagesSent;
  });
  expect(messageCounts).toEqual([0, 0]);
});

test("rejects unknown options", () => {
  expect(() => ulysses({ axes: "tp" } as object)).toThrow(
    /ulysses: expected options among axis, inner, received "axes"/,
  );
});

test("the description names the axis, and an inner backend unless it is local()", () => {
  const descriptions = [{}, { inner: local() }, { axis: "gpu", inner: ulysses({ axis: "node" }) }].map(
    (options) => ulysses(options).description,
  );
  expect(descriptions).toEqual(["ulysses(sp)", "ulysses(sp)", "ulysses(gpu, ulysses(node))"]);
});
