import { ring } from "@mosaic/backend-ring";
import { type AttentionBackend, type Context, type DType, local, ShapeError, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { prove, record } from "../src/index.ts";

const right = ring();
const sizes = { mesh: { sp: 2 }, tokens: 16, numHeads: 1, headDim: 4 };

/** A ring that does something more before, on tensors of its own, or after. */
function besides(more: Partial<Record<"forward" | "backward", (ctx: Context, result: Tensor, input: Tensor) => void>>) {
  const backend: AttentionBackend = {
    ...right,
    attend(ctx, call, state, kv) {
      right.attend(ctx, call, state, kv);
      more.forward?.(ctx, state.out, kv.k);
    },
    attendBackward(ctx, call, grads, kv) {
      right.attendBackward(ctx, call, grads, kv);
      more.backward?.(ctx, grads.dk, kv.k);
    },
  };
  return backend;
}

const messages = (backend: AttentionBackend, options: object = {}) =>
  prove(record({ backend, ...sizes, ...options })).violations.map(({ message }) => message);

test("keys exchanged in place, in one batch, are rejected when they are posted", () => {
  const inner = local();
  const inPlace: AttentionBackend = {
    ...right,
    attend(ctx, call, state, { k, v, from }) {
      const other = 1 - ctx.rank;
      using mine = ctx.device.empty(k.shape, k.dtype);
      using values = ctx.device.empty(v.shape, v.dtype);
      ctx.device.kernels.copy(mine, k);
      ctx.device.kernels.copy(values, v);
      inner.attend(ctx, call, state, { k: mine, v: values, from });
      const both = [mine, values].flatMap((tensor) => [
        { tensor, to: other },
        { tensor, from: other },
      ]);
      ctx.world.sendRecv(both, { label: "in place" }).wait();
      inner.attend(ctx, call, state, { k: mine, v: values, from: { ...from, sp: other } });
    },
  };
  expect(() => messages(inPlace)).toThrow(
    /^in place, rank 0: sendRecv \(world\): expected receive buffers that do not overlap any other transfer/,
  );
});

test.each([2, 6])("%i messages to one place, and to places beside one another", (count) => {
  const received = (overlap: number) =>
    besides({
      forward(ctx) {
        using from = ctx.device.empty([count, 4], "float32");
        using into = ctx.device.empty([count * 4], "float32");
        const transfers = Array.from({ length: count }, (_, i) => {
          const start = i * 4 - (i === count - 1 ? overlap : 0);
          return [
            { tensor: from.slice(0, i, i + 1), to: 1 - ctx.rank },
            { tensor: into.slice(0, start, start + 4), from: 1 - ctx.rank },
          ] as const;
        });
        ctx.world.sendRecv(transfers.flat().toReversed()).wait();
      },
    });
  expect(messages(received(0))).toEqual([]);
  expect(() => messages(received(1))).toThrow(ShapeError);
});

test("collectives in place: where it is defined, and where it is not", () => {
  const collective = (post: (ctx: Context, whole: Tensor, share: (rank: number) => Tensor) => void) =>
    messages(
      besides({
        forward(ctx) {
          using whole = ctx.device.empty([8], "float32");
          post(ctx, whole, (rank) => whole.slice(0, 4 * rank, 4 * rank + 4));
        },
      }),
    );
  expect(collective(({ world }, whole) => world.allReduce(whole).wait())).toEqual([]);
  expect(collective(({ world, rank }, whole, share) => world.allGather(whole, share(rank)).wait())).toEqual([]);
  expect(collective(({ world, rank }, whole, share) => world.reduceScatter(share(rank), whole).wait())).toEqual([]);
  const refused: ((ctx: Context, whole: Tensor, share: (rank: number) => Tensor) => void)[] = [
    ({ world, rank }, whole, share) => world.allGather(whole, share(1 - rank)).wait(),
    ({ world, rank }, whole, share) => world.reduceScatter(share(1 - rank), whole).wait(),
    ({ world }, whole) => world.allToAll(whole, whole).wait(),
  ];
  for (const post of refused)
    expect(() => collective(post)).toThrow(
      /separate memory.* received overlapping tensors.*use a separate receive buffer/,
    );
});

test.each<[string, (ctx: Context, x: Tensor) => void]>([
  ["allReduce", ({ world }, x) => world.allReduce(x).wait()],
  ["broadcast", ({ world }, x) => world.broadcast(x, 0).wait()],
  ["allGather", ({ world, device }, x) => world.allGather(device.empty([8], x.dtype), x).wait()],
  ["allToAll", ({ world, device }, x) => world.allToAll(device.empty([4], x.dtype), x).wait()],
])("members of an %s must agree on the dtype", (op, post) => {
  const dtypes: readonly DType[] = ["bfloat16", "float16"];
  const backend = besides({ forward: (ctx) => post(ctx, ctx.device.empty([4], dtypes[ctx.rank]!)) });
  expect(messages(backend)).toEqual([`${op}: dtype mismatch: group rank 1 has float16, group rank 0 has bfloat16`]);
});

test("results that a collective still writes must not be returned", () => {
  const there = (ctx: Context, result: Tensor): void => {
    using back = ctx.device.empty(result.shape, result.dtype);
    const other = 1 - ctx.rank;
    const exchange = (sent: Tensor, received: Tensor) =>
      ctx.world.sendRecv([
        { tensor: sent, to: other },
        { tensor: received, from: other },
      ]);
    exchange(result, back).wait();
    exchange(back, result);
  };
  for (const phase of ["forward", "backward"] as const) {
    const [first] = messages(besides({ [phase]: there }), { dtype: "float32" });
    expect(first).toMatch(new RegExp(`^rank 0, ${phase}, .*(is returned|accesses memory)`));
  }
});

test("what the caller passed stays as it was", () => {
  const spoil = (ctx: Context, _: Tensor, k: Tensor): void => ctx.device.kernels.fill(k, 0);
  expect(messages(besides({ backward: spoil }))).toEqual([
    "rank 0, k: an input of the caller was overwritten",
    "rank 1, k: an input of the caller was overwritten",
  ]);
});
