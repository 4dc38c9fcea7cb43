import { onWorld } from "@mosaic/conformance";
import {
  type AttentionBackend,
  attention,
  type AttentionOptions,
  type Context,
  DisposedError,
  DTypeError,
  init,
  type Layout,
  layoutOf,
  local,
  MultiAxisAttention,
  OptionError,
  randn,
  ShapeError,
  type Tensor,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { expect, test } from "vitest";
import { ring } from "../src/index.ts";
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
    const given = { ctx, layout, q: make(), k: make(), v: make() };
    let thrown: unknown;
    try {
      mistake(given);
    } catch (error) {
      thrown = error;
    }
    expect(ctx.world.traffic().messagesSent).toBe(0);
    using q = make();
    using k = make();
    using out = attention(ctx, q, k, k, { backend: ring(), queries: layout, keys: layout });
    expect((await out.read()).every(Number.isFinite)).toBe(true);
    return thrown;
  });
}

const attend = ({ ctx, q, k, v }: Given, options: AttentionOptions): Tensor => attention(ctx, q, k, v, options);

/** Past core's own checks, to those of the ring. */
function fold({ ctx, q, k, v, layout }: Given, change: { keys?: Layout; from?: Record<string, number> } = {}): void {
  const out = ctx.device.empty(q.shape, "float32");
  const lse = ctx.device.empty(q.shape.slice(0, 3), "float32");
  const call = { q, at: ctx.mesh.coordinate, scale: 1, mask: [], queries: layout, keys: change.keys ?? layout };
  ring().attend(ctx, call, { out, lse }, { k, v, from: change.from ?? ctx.mesh.coordinate });
}

test("an axis that the mesh lacks", async () => {
  const errors = await onBothRanks((given) =>
    attend(given, { backend: ring({ axis: "gpu" }), queries: given.layout, keys: given.layout }),
  );
  for (const error of errors) {
    expect(error).toBeInstanceOf(OptionError);
    expect(String(error)).toMatch(/gpu/);
    expect(String(error)).toMatch(/sp/);
  }
});

test("keys that are not cut along the axis would be counted once per rank", async () => {
  const errors = await onBothRanks((given) => {
    fold(given, { keys: layoutOf({ mesh: given.ctx.mesh.shape, axes: [], length: 5 }) });
  });
  for (const [rank, error] of errors.entries()) {
    expect(error).toBeInstanceOf(OptionError);
    expect(String(error)).toContain(`ring(sp), rank ${rank}: expected keys that are cut along sp`);
  }
});

test("a shard of another length than its layout says", async () => {
  const errors = await onBothRanks((given) => fold({ ...given, k: randn(given.ctx, [1, 2, 6, 4]) }));
  for (const [rank, error] of errors.entries()) {
    expect(error).toBeInstanceOf(ShapeError);
    expect(String(error)).toContain(`ring(sp), rank ${rank}: expected keys [B,H,5,D]`);
    expect(String(error)).toContain("received [1,2,6,4]");
  }
});

test("values unlike the keys, in shape or dtype", async () => {
  const shapes = await onBothRanks((given) => fold({ ...given, v: randn(given.ctx, [1, 2, 5, 8]) }));
  for (const error of shapes) expect(error).toBeInstanceOf(ShapeError);
  const dtypes = await onBothRanks((given) =>
    fold({ ...given, v: randn(given.ctx, [1, 2, 5, 4], { dtype: "bfloat16" }) }),
  );
  for (const error of dtypes) expect(error).toBeInstanceOf(DTypeError);
});

test("keys of another rank", async () => {
  const errors = await onBothRanks((given) => fold(given, { from: { sp: 1 - given.ctx.rank } }));
  for (const error of errors) expect(String(error)).toMatch(/expected this rank's own keys, sp = [01]/);
});

test("a disposed tensor", async () => {
  const errors = await onBothRanks((given) => {
    given.v.dispose();
    fold(given);
  });
  for (const error of errors) expect(error).toBeInstanceOf(DisposedError);
});

test("gradients that are not float32, or not of the keys' shape", async () => {
  const backward = ({ ctx, q, k, v, layout }: Given, dk: Tensor) => {
    const at = ctx.mesh.coordinate;
    const rows = ctx.device.empty([1, 2, 5], "float32");
    const call = { q, at, scale: 1, mask: [], queries: layout, keys: layout, dOut: q, lse: rows, delta: rows };
    ring().attendBackward(ctx, call, { dq: q, dk, dv: dk }, { k, v, from: at });
  };
  const dtypes = await onBothRanks((given) => backward(given, given.ctx.device.empty([1, 2, 5, 4], "bfloat16")));
  for (const error of dtypes) expect(String(error)).toMatch(/DTypeError: ring\(sp\) backward.*float32 gradients/);
  const shapes = await onBothRanks((given) => backward(given, given.ctx.device.empty([1, 2, 4, 4], "float32")));
  for (const error of shapes) expect(String(error)).toMatch(/ShapeError: ring\(sp\) backward.*\[1,2,5,4\]/);
});

test("two levels of nesting on one axis", () => {
  expect(() => ring({ axis: "sp", inner: ring({ axis: "sp" }) })).toThrow(OptionError);
  expect(() => ring({ axis: "a", inner: ring({ axis: "b", inner: ring({ axis: "a" }) }) })).toThrow(
    /an axis of its own/,
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

test("a module says at once that the mesh lacks the axis, and no option is ignored", async () => {
  const mesh = { tp: 1 };
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1, mesh, backends: [ring()] });
  const options = { embedDim: 4, numHeads: 1, attentionAxis: 1, backend: "ring" };
  expect(() => new MultiAxisAttention(ctx, options)).toThrow(
    /ring\(sp\), rank 0: expected one of the mesh's axes tp, received "sp"; name the axis in init/,
  );
  expect(() => ring({ axes: "tp" } as object)).toThrow(/ring: expected options among axis, inner, received "axes"/);
  await ctx.close();
});
