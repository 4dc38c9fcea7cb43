import { onWorld } from "@mosaic/conformance";
import {
  type AttentionBackend,
  attention,
  type Context,
  type Coordinate,
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
import { ulysses } from "../src/index.ts";
import { makeWorld } from "./world.ts";

interface Given {
  readonly ctx: Context;
  readonly layout: Layout;
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
  readonly out: Tensor;
  readonly lse: Tensor;
}

/** What a mistake changes of a right call. */
interface Change {
  readonly queries?: Layout;
  readonly keys?: Layout;
  readonly at?: Coordinate;
  readonly from?: Coordinate;
  readonly backend?: ReturnType<typeof ulysses>;
}

/** Runs `mistake` on both ranks of a world, then shows that nothing was sent: the same world still works. */
async function onBothRanks(mistake: (given: Given) => unknown): Promise<unknown[]> {
  return onWorld(makeWorld, { size: 2 }, async (ctx) => {
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 10 });
    const make = () => randn(ctx, [1, 2, 5, 4]);
    const state = { out: ctx.device.empty([1, 2, 5, 4], "float32"), lse: ctx.device.empty([1, 2, 5], "float32") };
    let thrown: unknown;
    try {
      mistake({ ctx, layout, q: make(), k: make(), v: make(), ...state });
    } catch (error) {
      thrown = error;
    }
    expect(ctx.world.traffic().messagesSent).toBe(0);
    using q = make();
    using k = make();
    using out = attention(ctx, q, k, k, { backend: ulysses(), queries: layout, keys: layout });
    expect((await out.read()).every(Number.isFinite)).toBe(true);
    return thrown;
  });
}

/** Past core's own checks, to those of the exchange. */
function fold(given: Given, change: Change = {}): void {
  const { ctx, q, k, v, out, lse, layout } = given;
  const here = ctx.mesh.coordinate;
  const { queries = layout, keys = layout, at = here, from = here, backend = ulysses() } = change;
  backend.attend(ctx, { q, at, scale: 1, mask: [], queries, keys }, { out, lse }, { k, v, from });
}

type BackwardChange = Partial<Record<"dOut" | "delta" | "dq" | "dk", Tensor>>;

function foldBackward(given: Given, change: BackwardChange): void {
  const { ctx, q, k, v, lse, layout } = given;
  const at = ctx.mesh.coordinate;
  const { dOut = q, delta = lse, dq = q, dk = k } = change;
  const call = { q, at, scale: 1, mask: [], queries: layout, keys: layout, dOut, lse, delta };
  ulysses().attendBackward(ctx, call, { dq, dk, dv: v }, { k, v, from: at });
}

test("an axis that the mesh lacks, its own or the inner backend's", async () => {
  const inner = { ...local(), axes: ["node"] };
  for (const backend of [ulysses({ axis: "gpu" }), ulysses({ inner })]) {
    for (const [rank, error] of (await onBothRanks((given) => fold(given, { backend }))).entries()) {
      expect(error).toBeInstanceOf(OptionError);
      expect(String(error)).toMatch(
        new RegExp(`rank ${rank}: expected one of the mesh's axes sp, received "(gpu|node)"`),
      );
    }
  }
});

test("a sequence that is not cut along the axis would be counted once per rank", async () => {
  for (const name of ["queries", "keys"] as const) {
    const errors = await onBothRanks((given) =>
      fold(given, { [name]: layoutOf({ mesh: given.ctx.mesh.shape, axes: [], length: 5 }) }),
    );
    for (const [rank, error] of errors.entries()) {
      expect(error).toBeInstanceOf(OptionError);
      expect(String(error)).toContain(`ulysses(sp), rank ${rank}: expected ${name} that are cut along sp`);
    }
  }
});

test("axes in another order than the rows are concatenated in", async () => {
  const sent = await onWorld(makeWorld, { size: 2, mesh: { node: 1, gpu: 2 } }, async (ctx) => {
    const backend = ulysses({ axis: "gpu", inner: ulysses({ axis: "node" }) });
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["gpu", "node"], length: 10 });
    const x = randn(ctx, [1, 2, 5, 4]);
    expect(() => attention(ctx, x, x, x, { backend, queries: layout, keys: layout })).toThrow(
      `ulysses(gpu), rank ${ctx.rank}: expected queries that are cut along node, gpu, in this order`,
    );
    return ctx.world.traffic().messagesSent;
  });
  expect(sent).toEqual([0, 0]);
});

test("queries or keys of another rank, or of all", async () => {
  const errors = await onBothRanks((given) => fold(given, { from: { sp: 1 - given.ctx.rank } }));
  for (const error of errors) expect(String(error)).toMatch(/expected this rank's own keys, sp = [01]/);
  for (const error of await onBothRanks((given) => fold(given, { at: {} }))) {
    expect(String(error)).toMatch(/expected this rank's own queries, sp = [01], received queries from \{\}/);
  }
});

test("a shard of another length than its layout says", async () => {
  const keys = await onBothRanks((given) => fold({ ...given, k: randn(given.ctx, [1, 2, 6, 4]) }));
  for (const error of keys) expect(String(error)).toMatch(/ShapeError: .*keys \[B,H,5,D\].*received \[1,2,6,4\]/);
  const queries = await onBothRanks((given) => fold({ ...given, q: randn(given.ctx, [1, 2, 4, 4]) }));
  for (const error of queries) expect(String(error)).toMatch(/ShapeError: .*queries \[B,H,5,D\].*received \[1,2,4,4\]/);
});

test("keys and values unlike the queries, or each other", async () => {
  const make = (given: Given, shape: readonly number[]) => randn(given.ctx, shape);
  const mistakes: ((given: Given) => Partial<Given>)[] = [
    (given) => ({ k: make(given, [1, 3, 5, 4]) }),
    (given) => ({ k: make(given, [2, 2, 5, 4]) }),
    (given) => ({ k: make(given, [1, 2, 5, 3]) }),
    (given) => ({ v: make(given, [1, 1, 5, 4]) }),
  ];
  for (const mistake of mistakes) {
    const errors = await onBothRanks((given) => fold({ ...given, ...mistake(given) }));
    for (const error of errors) expect(error).toBeInstanceOf(ShapeError);
  }
  const dtypes = await onBothRanks((given) =>
    fold({ ...given, v: randn(given.ctx, [1, 2, 5, 4], { dtype: "bfloat16" }) }),
  );
  for (const error of dtypes) expect(error).toBeInstanceOf(DTypeError);
});

test("a state that is not float32, or not of the queries' shape", async () => {
  const dtypes = await onBothRanks((given) => fold({ ...given, out: given.ctx.device.empty([1, 2, 5, 4], "float16") }));
  for (const error of dtypes) expect(String(error)).toMatch(/DTypeError: ulysses\(sp\).*out float32/);
  const shapes = await onBothRanks((given) => fold({ ...given, lse: given.ctx.device.empty([1, 2, 4], "float32") }));
  for (const error of shapes) expect(String(error)).toMatch(/ShapeError: ulysses\(sp\).*lse \[1,2,5\]/);
});

test("saved rows and gradients that are not float32, or of another shape", async () => {
  const mistakes: readonly [change: (ctx: Context) => BackwardChange, message: RegExp][] = [
    [(ctx) => ({ dOut: randn(ctx, [1, 2, 5, 3]) }), /ShapeError: ulysses\(sp\) backward.*dOut \[1,2,5,4\]/],
    [(ctx) => ({ delta: ctx.device.empty([1, 2, 5], "bfloat16") }), /DTypeError: ulysses\(sp\) backward.*delta/],
    [(ctx) => ({ dq: ctx.device.empty([1, 2, 5, 4], "bfloat16") }), /DTypeError: ulysses\(sp\) backward.*dq float32/],
    [(ctx) => ({ dk: ctx.device.empty([1, 2, 4, 4], "float32") }), /ShapeError: ulysses\(sp\) backward.*dk/],
  ];
  for (const [change, message] of mistakes) {
    const errors = await onBothRanks((given) => foldBackward(given, change(given.ctx)));
    for (const error of errors) expect(String(error)).toMatch(message);
  }
});

test("a disposed tensor", async () => {
  const errors = await onBothRanks((given) => {
    given.v.dispose();
    fold(given);
  });
  for (const error of errors) expect(error).toBeInstanceOf(DisposedError);
});

test("two levels of nesting on one axis", () => {
  expect(() => ulysses({ inner: ulysses() })).toThrow(OptionError);
  expect(() => ulysses({ axis: "a", inner: ulysses({ axis: "b", inner: ulysses({ axis: "a" }) }) })).toThrow(
    /ulysses\(a\).*an axis of its own/,
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

test("a module says at once that the mesh lacks the axis, and no option is ignored", async () => {
  const mesh = { tp: 1 };
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1, mesh, backends: [ulysses()] });
  const options = { embedDim: 4, numHeads: 1, attentionAxis: 1, backend: "ulysses" };
  expect(() => new MultiAxisAttention(ctx, options)).toThrow(
    /ulysses\(sp\), rank 0: expected one of the mesh's axes tp, received "sp"; name the axis in init/,
  );
  expect(() => ulysses({ axes: "tp" } as object)).toThrow(
    /ulysses: expected options among axis, inner, received "axes"/,
  );
  await ctx.close();
});
