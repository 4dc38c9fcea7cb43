import { onWorld, validationSuite } from "@mosaic/conformance";
import {
  type AttentionBackend,
  attention,
  init,
  layoutOf,
  local,
  MultiAxisAttention,
  OptionError,
  randn,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { expect, test } from "vitest";
import { ulysses } from "../src/index.ts";
import { makeWorld, register } from "./world.ts";

register(validationSuite({ makeWorld, backend: (axis) => ulysses({ axis }) }));

test("an axis of the inner backend that the mesh lacks", async () => {
  const sent = await onWorld(makeWorld, { size: 2 }, async (ctx) => {
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
  expect(sent).toEqual([0, 0]);
});

test("axes in another order than the rows are concatenated in", async () => {
  const sent = await onWorld(makeWorld, { size: 2, mesh: { node: 1, gpu: 2 } }, async (ctx) => {
    const backend = ulysses({ axis: "gpu", inner: ulysses({ axis: "node" }) });
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["gpu", "node"], length: 10 });
    const x = randn(ctx, [1, 2, 5, 4]);
    expect(() => attention(ctx, x, x, x, { backend, queries: layout, keys: layout })).toThrow(
      `ulysses(gpu), rank ${ctx.rank}: expected queries sharded along node, gpu, in this order`,
    );
    return ctx.world.traffic().messagesSent;
  });
  expect(sent).toEqual([0, 0]);
});

test("two levels of nesting on one axis", () => {
  expect(() => ulysses({ inner: ulysses() })).toThrow(OptionError);
  expect(() => ulysses({ axis: "a", inner: ulysses({ axis: "b", inner: ulysses({ axis: "a" }) }) })).toThrow(
    /ulysses\(a\).*a separate mesh axis/,
  );
});

test("a context that was closed", async () => {
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  const x = randn(ctx, [1, 2, 5, 4]);
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 5 });
  await ctx.close();
  expect(() => attention(ctx, x, x, x, { backend: ulysses(), queries: layout, keys: layout })).toThrow(/open context/);
});

test("an inner backend is asked what it needs of the mesh", async () => {
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  const inner: AttentionBackend = {
    ...local(),
    check({ mesh }) {
      throw new OptionError({ where: "inner", received: mesh.axes.join() });
    },
  };
  expect(() => ulysses({ inner }).check?.(ctx)).toThrow("inner: received sp");
  expect(() => ulysses().check?.(ctx)).not.toThrow();
  await ctx.close();
});

test("a module reports at once that the mesh lacks the axis, and no option is ignored", async () => {
  const mesh = { tp: 1 };
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1, mesh, backends: [ulysses()] });
  const options = { embedDim: 4, numHeads: 1, attentionAxis: 1, backend: "ulysses" };
  expect(() => new MultiAxisAttention(ctx, options)).toThrow(
    /ulysses\(sp\), rank 0: expected one of the mesh's axes tp, received "sp"; add the axis to init/,
  );
  expect(() => ulysses({ axes: "tp" } as object)).toThrow(
    /ulysses: expected options among axis, inner, received "axes"/,
  );
  await ctx.close();
});
