import { ring } from "@mosaic/backend-ring";
import { type AttentionBackend, type Context, type DType, local, ShapeError, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { prove, record } from "../src/index.ts";

const ringBackend = ring();
const sizes = { mesh: { sp: 2 }, tokens: 16, numHeads: 1, headDim: 4 };

/** A ring that does something more after its forward or backward. */
function extendRing(
  hooks: Partial<Record<"forward" | "backward", (ctx: Context, result: Tensor, input: Tensor) => void>>,
) {
  const backend: AttentionBackend = {
    ...ringBackend,
    attend(ctx, call, state, kv) {
      ringBackend.attend(ctx, call, state, kv);
      hooks.forward?.(ctx, state.out, kv.k);
    },
    attendBackward(ctx, call, grads, kv) {
      ringBackend.attendBackward(ctx, call, grads, kv);
      hooks.backward?.(ctx, grads.dk, kv.k);
    },
  };
  return backend;
}

const listViolations = (backend: AttentionBackend, options: object = {}) =>
  prove(record({ backend, ...sizes, ...options })).violations.map(({ message }) => message);

test("record rejects keys that are exchanged in place in one batch", () => {
  const inner = local();
  const inPlace: AttentionBackend = {
    ...ringBackend,
    attend(ctx, call, state, { k, v, from }) {
      const peer = 1 - ctx.rank;
      using ownKeys = ctx.device.empty(k.shape, k.dtype);
      using ownValues = ctx.device.empty(v.shape, v.dtype);
      ctx.device.kernels.copy(ownKeys, k);
      ctx.device.kernels.copy(ownValues, v);
      inner.attend(ctx, call, state, { k: ownKeys, v: ownValues, from });
      const transfers = [ownKeys, ownValues].flatMap((tensor) => [
        { tensor, to: peer },
        { tensor, from: peer },
      ]);
      ctx.world.sendRecv(transfers, { label: "in place" }).wait();
      inner.attend(ctx, call, state, { k: ownKeys, v: ownValues, from: { ...from, sp: peer } });
    },
  };
  expect(() => listViolations(inPlace)).toThrow(
    /^in place, rank 0: sendRecv \(world\): expected receive buffers that do not overlap any other transfer/,
  );
});

test.each([2, 6])(
  "record accepts %i messages into adjacent buffers and rejects them into overlapping buffers",
  (count) => {
    const createReceiver = (overlap: number) =>
      extendRing({
        forward(ctx) {
          using source = ctx.device.empty([count, 4], "float32");
          using target = ctx.device.empty([count * 4], "float32");
          const transfers = Array.from({ length: count }, (_, i) => {
            const start = i * 4 - (i === count - 1 ? overlap : 0);
            return [
              { tensor: source.slice(0, i, i + 1), to: 1 - ctx.rank },
              { tensor: target.slice(0, start, start + 4), from: 1 - ctx.rank },
            ] as const;
          });
          ctx.world.sendRecv(transfers.flat().toReversed()).wait();
        },
      });
    expect(listViolations(createReceiver(0))).toEqual([]);
    expect(() => listViolations(createReceiver(1))).toThrow(ShapeError);
  },
);

test("collectives work in place where that is defined, and reject overlapping buffers elsewhere", () => {
  const proveCollective = (post: (ctx: Context, whole: Tensor, share: (rank: number) => Tensor) => void) =>
    listViolations(
      extendRing({
        forward(ctx) {
          using whole = ctx.device.empty([8], "float32");
          post(ctx, whole, (rank) => whole.slice(0, 4 * rank, 4 * rank + 4));
        },
      }),
    );
  expect(proveCollective(({ world }, whole) => world.allReduce(whole).wait())).toEqual([]);
  expect(proveCollective(({ world, rank }, whole, share) => world.allGather(whole, share(rank)).wait())).toEqual([]);
  expect(proveCollective(({ world, rank }, whole, share) => world.reduceScatter(share(rank), whole).wait())).toEqual(
    [],
  );
  const refusedCollectives: ((ctx: Context, whole: Tensor, share: (rank: number) => Tensor) => void)[] = [
    ({ world, rank }, whole, share) => world.allGather(whole, share(1 - rank)).wait(),
    ({ world, rank }, whole, share) => world.reduceScatter(share(1 - rank), whole).wait(),
    ({ world }, whole) => world.allToAll(whole, whole).wait(),
  ];
  for (const post of refusedCollectives)
    expect(() => proveCollective(post)).toThrow(
      /separate memory.* received overlapping tensors.*use a separate receive buffer/,
    );
});

test.each<[string, (ctx: Context, x: Tensor) => void]>([
  ["allReduce", ({ world }, x) => world.allReduce(x).wait()],
  ["broadcast", ({ world }, x) => world.broadcast(x, 0).wait()],
  ["allGather", ({ world, device }, x) => world.allGather(device.empty([8], x.dtype), x).wait()],
  ["allToAll", ({ world, device }, x) => world.allToAll(device.empty([4], x.dtype), x).wait()],
])("prove reports members of an %s with different dtypes", (op, post) => {
  const dtypes: readonly DType[] = ["bfloat16", "float16"];
  const backend = extendRing({ forward: (ctx) => post(ctx, ctx.device.empty([4], dtypes[ctx.rank]!)) });
  expect(listViolations(backend)).toEqual([
    `${op}: dtype mismatch: group rank 1 has float16, group rank 0 has bfloat16`,
  ]);
});

test("prove reports results that are returned while a collective still writes them", () => {
  const exchangeTwice = (ctx: Context, result: Tensor): void => {
    using replyBuffer = ctx.device.empty(result.shape, result.dtype);
    const peer = 1 - ctx.rank;
    const exchange = (sendBuffer: Tensor, receiveBuffer: Tensor) =>
      ctx.world.sendRecv([
        { tensor: sendBuffer, to: peer },
        { tensor: receiveBuffer, from: peer },
      ]);
    exchange(result, replyBuffer).wait();
    exchange(replyBuffer, result);
  };
  for (const phase of ["forward", "backward"] as const) {
    const [first] = listViolations(extendRing({ [phase]: exchangeTwice }), { dtype: "float32" });
    expect(first).toMatch(new RegExp(`^rank 0, ${phase}, .*(is returned|accesses memory)`));
  }
});

test("prove reports inputs of the caller that are overwritten", () => {
  const overwriteKeys = (ctx: Context, _: Tensor, k: Tensor): void => ctx.device.kernels.fill(k, 0);
  expect(listViolations(extendRing({ backward: overwriteKeys }))).toEqual([
    "rank 0, k: an input of the caller was overwritten",
    "rank 1, k: an input of the caller was overwritten",
  ]);
});
