import { runOnWorld, validationSuite } from "@mosaic/conformance";
import { attention, blockwise, layoutOf, OptionError, randn, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { mesh2d } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(validationSuite({ makeWorld, backend: (axis) => mesh2d({ axis }) }));

test("rejects a shape with a different number of ranks", async () => {
  await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 10 });
    const x = randn(ctx, [1, 2, 5, 4]);
    const call = { q: x, at: ctx.mesh.coordinate, scale: 1, mask: [], queries: layout, keys: layout };
    const state = { out: x, lse: ctx.device.empty([1, 2, 5], "float32") };
    const backend = mesh2d({ shape: [2, 3] });
    const message = `mesh2d(sp), rank ${ctx.rank}: expected a grid of 2 ranks, received [2, 3], 6 ranks`;
    expect(() => backend.attend(ctx, call, state, { k: x, v: x, from: call.at })).toThrow(message);
    expect(() => backend.check!(ctx)).toThrow(message);
    expect(ctx.world.traffic().messagesSent).toBe(0);
  });
});

test("rejects keys from an undeclared rank, and keys after the last declared part", async () => {
  await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 10 });
    const [q, k, v] = [1, 2, 3].map(() => randn(ctx, [1, 2, 5, 4])) as [Tensor, Tensor, Tensor];
    const at = ctx.mesh.coordinate;
    using blockwiseAttention = blockwise(mesh2d(), [{ ...at, node: 1 }]);
    const state = { out: ctx.device.empty(q.shape, "float32"), lse: ctx.device.empty(q.shape.slice(0, 3), "float32") };
    const call = { q, at, scale: 1, mask: [], queries: layout, keys: layout };
    expect(() => blockwiseAttention.attend(ctx, call, state, { k, v, from: { ...at, node: 0 } })).toThrow(
      /mesh2d\(sp\): expected keys from \{"sp":\d,"node":1\}, received keys from \{"sp":\d,"node":0\}/,
    );
    const declaredShard = { k, v, from: { ...at, node: 1 } };
    blockwiseAttention.attend(ctx, call, state, declaredShard);
    const attendAgain = () => blockwiseAttention.attend(ctx, call, state, declaredShard);
    expect(attendAgain).toThrow(OptionError);
    expect(attendAgain).toThrow(/expected no further keys, received keys from .*blockwise/);
    expect(ctx.world.traffic().messagesSent).toBe(0);
    using out = attention(ctx, q, q, q, { backend: mesh2d({ shape: [2, 1] }), queries: layout, keys: layout });
    expect((await out.read()).every(Number.isFinite)).toBe(true);
  });
});

test("rejects options that are invalid for every mesh", () => {
  for (const shape of [[0, 2], [1.5, 2], [2], [2, 2, 2]]) {
    expect(() => mesh2d({ shape: shape as unknown as [number, number] })).toThrow(
      /two integers > 0, \[rows, columns\]/,
    );
  }
  expect(() => mesh2d({ inner: mesh2d({ axis: "gpu" }) })).toThrow(/inner backend without communication/);
  expect(() => mesh2d({ shape: 4 as unknown as [number, number] })).toThrow(/\[rows, columns\], received 4/);
  expect(() => mesh2d({ schedule: "fast" as "fused" })).toThrow(/"auto", "fused" or "overlapped", received "fast"/);
  expect(() => mesh2d({ channels: 3 as 2 })).toThrow(/channels: expected 1 or 2, received 3/);
  expect(() => mesh2d({ computeToTransfer: 0 })).toThrow(/a ratio > 0/);
  expect(() => mesh2d({ links: [1, 0] })).toThrow(
    /links: expected two transfer times > 0, \[row, column\], received \[1,0\]/,
  );
  expect(() => mesh2d({ halfSpeedRows: -1 })).toThrow(/a number of rows ≥ 0, received -1/);
  expect(() => mesh2d({ rows: 2 } as object)).toThrow(OptionError);
});
