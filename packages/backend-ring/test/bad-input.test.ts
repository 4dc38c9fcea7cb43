import { validationSuite } from "@mosaic/conformance";
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
import { ring } from "../src/index.ts";
import { makeWorld, register } from "./world.ts";

// Queries may be whole along the axis: they are then the same on every rank.
register(validationSuite({ makeWorld, backend: (axis) => ring({ axis }), sharded: ["keys"] }));

test("two levels of nesting on one axis", () => {
  expect(() => ring({ axis: "sp", inner: ring({ axis: "sp" }) })).toThrow(OptionError);
  expect(() => ring({ axis: "a", inner: ring({ axis: "b", inner: ring({ axis: "a" }) }) })).toThrow(
    /a separate mesh axis/,
  );
});

test("a context that was closed", async () => {
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  const x = randn(ctx, [1, 2, 5, 4]);
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 5 });
  await ctx.close();
  expect(() => attention(ctx, x, x, x, { backend: ring(), queries: layout, keys: layout })).toThrow(/open context/);
});

test("an inner backend is asked what it needs of the mesh", async () => {
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  const inner: AttentionBackend = {
    ...local(),
    check({ mesh }) {
      throw new OptionError({ where: "inner", received: mesh.axes.join() });
    },
  };
  expect(() => ring({ inner }).check?.(ctx)).toThrow("inner: received sp");
  expect(() => ring().check?.(ctx)).not.toThrow();
  await ctx.close();
});

test("a module reports at once that the mesh lacks the axis, and no option is ignored", async () => {
  const mesh = { tp: 1 };
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1, mesh, backends: [ring()] });
  const options = { embedDim: 4, numHeads: 1, attentionAxis: 1, backend: "ring" };
  expect(() => new MultiAxisAttention(ctx, options)).toThrow(
    /ring\(sp\), rank 0: expected one of the mesh's axes tp, received "sp"; add the axis to init/,
  );
  expect(() => ring({ axes: "tp" } as object)).toThrow(/ring: expected options among axis, inner, received "axes"/);
  await ctx.close();
});
