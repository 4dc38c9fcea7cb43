import { onWorld } from "@mosaic/conformance";
import {
  type AttentionBackend,
  attention,
  type Context,
  type Coordinate,
  DisposedError,
  DTypeError,
  init,
  inParts,
  type Layout,
  layoutOf,
  OptionError,
  randn,
  ShapeError,
  type Tensor,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { expect, test } from "vitest";
import { mesh2d } from "../src/index.ts";
import { makeWorld } from "./world.ts";

interface Given {
  readonly ctx: Context;
  readonly layout: Layout;
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
}

/** Runs `mistake` on both ranks of a world, then shows that nothing was sent: the same world still works. */
async function onBothRanks(mistake: (given: Given) => unknown): Promise<unknown[]> {
  return onWorld(makeWorld, { size: 2 }, async (ctx) => {
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 10 });
    const make = () => randn(ctx, [1, 2, 5, 4]);
    let thrown: unknown;
    try {
      mistake({ ctx, layout, q: make(), k: make(), v: make() });
    } catch (error) {
      thrown = error;
    }
    expect(ctx.world.traffic().messagesSent).toBe(0);
    using q = make();
    using out = attention(ctx, q, q, q, { backend: mesh2d({ shape: [2, 1] }), queries: layout, keys: layout });
    expect((await out.read()).every(Number.isFinite)).toBe(true);
    return thrown;
  });
}

interface Change {
  readonly backend?: AttentionBackend;
  readonly queries?: Layout;
  readonly keys?: Layout;
  readonly from?: Coordinate;
  readonly lse?: Tensor;
  readonly dk?: Tensor;
}

/** Past core's own checks, to those of this backend. */
function fold({ ctx, q, k, v, layout }: Given, change: Change = {}): void {
  const { queries = layout, keys = layout, from = ctx.mesh.coordinate, backend = mesh2d() } = change;
  const out = ctx.device.empty(q.shape, "float32");
  const lse = change.lse ?? ctx.device.empty(q.shape.slice(0, 3), "float32");
  const call = { q, at: ctx.mesh.coordinate, scale: 1, mask: [], queries, keys };
  if (!change.dk) {
    backend.attend(ctx, call, { out, lse }, { k, v, from });
    return;
  }
  const grads = { dq: out, dk: change.dk, dv: ctx.device.empty(v.shape, "float32") };
  backend.attendBackward(ctx, { ...call, dOut: q, lse, delta: lse }, grads, { k, v, from });
}

const empty = ({ ctx }: Given, shape: readonly number[], dtype: "float32" | "bfloat16" = "float32") =>
  ctx.device.empty(shape, dtype);

type ErrorClass = abstract new (...parts: never[]) => Error;

const mistakes: readonly (readonly [string, (given: Given) => unknown, ErrorClass, RegExp])[] = [
  ["an axis that the mesh lacks", (g) => fold(g, { backend: mesh2d({ axis: "gpu" }) }), OptionError, /axes sp.*"gpu"/],
  [
    "a shape of other many ranks",
    (g) => fold(g, { backend: mesh2d({ shape: [2, 3] }) }),
    OptionError,
    /mesh2d\(sp\), rank \d: expected a shape of 2 ranks, received \[2, 3\], 6/,
  ],
  [
    "whole keys",
    (g) => fold(g, { keys: layoutOf({ mesh: g.ctx.mesh.shape, axes: [], length: 5 }) }),
    OptionError,
    /keys that are cut along sp, received whole keys/,
  ],
  [
    "whole queries",
    (g) => fold(g, { queries: layoutOf({ mesh: g.ctx.mesh.shape, axes: [], length: 5 }) }),
    OptionError,
    /queries that are cut along sp, received whole queries/,
  ],
  [
    "keys of another rank",
    (g) => fold(g, { from: { sp: 1 - g.ctx.rank } }),
    OptionError,
    /this rank's own keys, sp = \d/,
  ],
  [
    "a shard of another length than its layout says",
    (g) => fold({ ...g, k: empty(g, [1, 2, 6, 4]) }),
    ShapeError,
    /keys \[B,H,5,D\].*received \[1,2,6,4\]/,
  ],
  ["queries of another length", (g) => fold({ ...g, q: empty(g, [1, 2, 4, 4]) }), ShapeError, /queries \[B,H,5,D\]/],
  ["values of another shape", (g) => fold({ ...g, v: empty(g, [1, 2, 5, 8]) }), ShapeError, /values like the keys/],
  [
    "values of another dtype",
    (g) => fold({ ...g, v: empty(g, [1, 2, 5, 4], "bfloat16") }),
    DTypeError,
    /values of float32/,
  ],
  ["queries of another dtype", (g) => fold({ ...g, q: empty(g, [1, 2, 5, 4], "bfloat16") }), DTypeError, /queries of/],
  ["an lse of another shape", (g) => fold(g, { lse: empty(g, [1, 2, 4]) }), ShapeError, /lse \[1,2,5\]/],
  [
    "gradients that are not float32",
    (g) => fold(g, { dk: empty(g, [1, 2, 5, 4], "bfloat16") }),
    DTypeError,
    /dk of float32/,
  ],
  [
    "gradients of another shape",
    (g) => fold(g, { dk: empty(g, [1, 2, 4, 4]) }),
    ShapeError,
    /backward.*dk \[1,2,5,4\]/,
  ],
  [
    "a disposed tensor",
    (g) => {
      g.v.dispose();
      fold(g);
    },
    DisposedError,
    /mesh2d\(sp\)/,
  ],
];

test.each(mistakes)("%s is refused on every rank before anything is sent", async (_, mistake, kind, message) => {
  for (const error of await onBothRanks(mistake)) {
    expect(error).toBeInstanceOf(kind);
    expect(String(error)).toMatch(message);
  }
});

test("parts that come from elsewhere than was said, or after the last, are refused", async () => {
  const thrown = await onBothRanks((given) => {
    const { ctx, layout, q, k, v } = given;
    const at = ctx.mesh.coordinate;
    using parts = inParts(mesh2d(), [{ ...at, node: 1 }]);
    const state = { out: ctx.device.empty(q.shape, "float32"), lse: ctx.device.empty(q.shape.slice(0, 3), "float32") };
    const call = { q, at, scale: 1, mask: [], queries: layout, keys: layout };
    expect(() => parts.attend(ctx, call, state, { k, v, from: { ...at, node: 0 } })).toThrow(
      /mesh2d\(sp\): expected keys from \{"sp":\d,"node":1\}, received keys from \{"sp":\d,"node":0\}/,
    );
    const keys = { k, v, from: { ...at, node: 1 } };
    parts.attend(ctx, call, state, keys);
    parts.attend(ctx, call, state, keys);
  });
  for (const error of thrown) {
    expect(error).toBeInstanceOf(OptionError);
    expect(String(error)).toMatch(/expected no more keys, received keys from .*inParts/);
  }
});

test("options that no mesh could make right", () => {
  for (const shape of [[0, 2], [1.5, 2], [2], [2, 2, 2]]) {
    expect(() => mesh2d({ shape: shape as unknown as [number, number] })).toThrow(
      /two whole numbers > 0, \[rows, columns\]/,
    );
  }
  expect(() => mesh2d({ inner: mesh2d({ axis: "gpu" }) })).toThrow(/inner backend that communicates with nobody/);
  expect(() => mesh2d({ shape: 4 as unknown as [number, number] })).toThrow(/\[rows, columns\], received 4/);
  expect(() => mesh2d({ form: "fast" as "fused" })).toThrow(/"auto", "fused" or "scheduled", received "fast"/);
  expect(() => mesh2d({ channels: 3 as 2 })).toThrow(/channels 1 or 2, received 3/);
  expect(() => mesh2d({ computeToTransfer: 0 })).toThrow(/a ratio > 0/);
  expect(() => mesh2d({ links: [1, 0] })).toThrow(/links, two times > 0, \[row, column\], received \[1,0\]/);
  expect(() => mesh2d({ halfSpeedRows: -1 })).toThrow(/a number of rows ≥ 0, received -1/);
  expect(() => mesh2d({ rows: 2 } as object)).toThrow(OptionError);
});

test("a context that was closed", async () => {
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  const x = randn(ctx, [1, 2, 5, 4]);
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 5 });
  await ctx.close();
  expect(() => attention(ctx, x, x, x, { backend: mesh2d(), queries: layout, keys: layout })).toThrow(/open context/);
});
