import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { type AttentionBackend, type AttentionCall, type KvShard, local } from "../../src/attention/backend.ts";
import type { AttentionState, QkvGrads, SavedRows } from "../../src/attention/tile.ts";
import { validator } from "../../src/context-parallel/validation.ts";
import type { Context } from "../../src/context.ts";
import type { DType } from "../../src/storage.ts";
import { ClosedError, DisposedError, OptionError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import type { Shape } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice } from "../reference/index.ts";

let ctx: Context;
beforeEach(async () => {
  ctx = await init({ device: new ReferenceDevice(), mesh: { node: 1, gpu: 1 } });
});
afterEach(() => ctx.close());

const validate = validator({ name: "mine", axis: "gpu", inner: local(), sharded: ["queries", "keys"] });
const empty = (shape: Shape, dtype: DType = "float32"): Tensor => ctx.device.empty(shape, dtype);
const layout = (axes: readonly string[]) => layoutOf({ mesh: ctx.mesh.shape, axes, length: 5 });

/** A right call of 5 tokens, 4 heads on 2. */
function validCall(): { call: AttentionCall & SavedRows; state: AttentionState; grads: QkvGrads; kv: KvShard } {
  const at = { node: 0, gpu: 0 };
  const [q, dOut, k, v] = [empty([1, 4, 5, 8]), empty([1, 4, 5, 8]), empty([1, 2, 5, 8]), empty([1, 2, 5, 8])];
  const rows = layout(["node", "gpu"]);
  return {
    call: {
      q,
      dOut,
      lse: empty([1, 4, 5]),
      delta: empty([1, 4, 5]),
      at,
      scale: 1,
      mask: [],
      queries: rows,
      keys: rows,
    },
    state: { out: empty([1, 4, 5, 8]), lse: empty([1, 4, 5]) },
    grads: { dq: empty([1, 4, 5, 8]), dk: empty([1, 2, 5, 8]), dv: empty([1, 2, 5, 8]) },
    kv: { k, v, from: at },
  };
}

test("a right call passes, forward and backward", () => {
  const { call, state, grads, kv } = validCall();
  validate.context(ctx);
  validate.attend(ctx, call, state, kv);
  validate.attendBackward(ctx, call, grads, kv);
});

describe("errors state where, what was expected and received, and the remedy", () => {
  const forward = (change: (given: ReturnType<typeof validCall>) => Partial<ReturnType<typeof validCall>>) => () => {
    const given = validCall();
    const { call, state, kv } = { ...given, ...change(given) };
    validate.attend(ctx, call, state, kv);
  };
  const backward = (change: (given: ReturnType<typeof validCall>) => Partial<ReturnType<typeof validCall>>) => () => {
    const given = validCall();
    const { call, grads, kv } = { ...given, ...change(given) };
    validate.attendBackward(ctx, call, grads, kv);
  };
  const remedies = {
    shape: (like: string) => `use the shape of ${like}`,
    sum: "accumulate in float32, and round once at the end",
  };

  test.each<[string, () => void, string]>([
    [
      "rows",
      forward(({ kv }) => ({ kv: { ...kv, k: empty([1, 2, 6, 8]) } })),
      "keys [B,H,5,D], as specified by their layout, received [1,2,6,8]; create the layout with the placement and the length that the sequence was sharded with",
    ],
    [
      "heads",
      forward(({ kv }) => ({ kv: { ...kv, k: empty([1, 3, 5, 8]) } })),
      "keys [1,Hkv,S,8] with Hkv a divisor of the 4 query heads, received [1,3,5,8]; reshape q to [B,H,S,D] and k to [B,Hkv,S,D], with the same B and D, and H divisible by Hkv",
    ],
    [
      "values",
      forward(({ kv }) => ({ kv: { ...kv, v: empty([1, 2, 4, 8]) } })),
      `values of the keys' shape [1,2,5,8], received [1,2,4,8]; ${remedies.shape("k, except for the head size")}`,
    ],
    [
      "values of another head size than the result",
      forward(({ kv }) => ({ kv: { ...kv, v: empty([1, 2, 5, 4]) } })),
      `out [1,4,5,4], received [1,4,5,8]; ${remedies.shape("q, with the head size of v")}`,
    ],
    [
      "dtypes of inputs",
      forward(({ call }) => ({ call: { ...call, q: empty([1, 4, 5, 8], "float16") } })),
      "queries with the dtype of the keys, float32, received float16; convert with to(dtype)",
    ],
    [
      "out",
      forward(({ state }) => ({ state: { ...state, out: empty([1, 4, 5, 8], "bfloat16") } })),
      `out of dtype float32, received bfloat16; ${remedies.sum}`,
    ],
    [
      "lse",
      forward(({ state }) => ({ state: { ...state, lse: empty([1, 4, 5, 1]) } })),
      `lse [1,4,5], received [1,4,5,1]; ${remedies.shape("q without the last axis")}`,
    ],
    [
      "sequences",
      forward(({ call }) => ({ call: { ...call, queries: layout([]) } })),
      "queries sharded along gpu, received unsharded queries; shard with a layout along backend.axes; otherwise (query, key) pairs are counted more than once",
    ],
    [
      "places",
      forward(({ kv }) => ({ kv: { ...kv, from: { node: 0 } } })),
      'this rank\'s shard of the keys, gpu = 0, received keys from {"node":0}; use each mesh axis in one backend only: another backend already gathers along it',
    ],
  ])("%s", (_, run, message) => expect(run).toThrow(`mine(gpu), rank 0: expected ${message}`));

  test.each<[string, () => void, string]>([
    [
      "dOut",
      backward(({ call }) => ({ call: { ...call, dOut: empty([1, 4, 5, 4]) } })),
      `dOut [1,4,5,8], received [1,4,5,4]; ${remedies.shape("q")}`,
    ],
    [
      "delta",
      backward(({ call }) => ({ call: { ...call, delta: empty([1, 4, 5], "float16") } })),
      `delta of dtype float32, received float16; ${remedies.sum}`,
    ],
    [
      "dk",
      backward(({ grads }) => ({ grads: { ...grads, dk: empty([1, 4, 5, 8]) } })),
      `dk [1,2,5,8], received [1,4,5,8]; ${remedies.shape("k")}`,
    ],
  ])("backward: %s", (_, run, message) => expect(run).toThrow(`mine(gpu) backward, rank 0: expected ${message}`));

  test("a disposed sum, and a closed context", async () => {
    const disposed = forward(({ state }) => {
      state.out.dispose();
      return {};
    });
    expect(disposed).toThrow(DisposedError);
    const { call, state, kv } = validCall();
    await ctx.close();
    expect(() => validate.attend(ctx, call, state, kv)).toThrow(ClosedError);
  });
});

test("queries may be whole unless the rules state otherwise", () => {
  const { call, state, kv } = validCall();
  const whole = { ...call, queries: layout([]) };
  validator({ name: "mine", axis: "gpu" }).attend(ctx, whole, state, kv);
  expect(() => validate.attend(ctx, whole, state, kv)).toThrow(OptionError);
});

test("axes must all be there, and in the order in which rows are concatenated", () => {
  const axes = ["node", "gpu"];
  const ordered = validator({ name: "mine", axis: "gpu", axes, sharded: ["queries", "keys"] });
  const { call, state, kv } = validCall();
  ordered.attend(ctx, call, state, kv);
  expect(() => ordered.attend(ctx, { ...call, keys: layout(["gpu", "node"]) }, state, kv)).toThrow(
    "mine(gpu), rank 0: expected keys sharded along node, gpu, in this order, received keys sharded along gpu, node; ",
  );
  expect(() => ordered.attend(ctx, { ...call, queries: layout(["gpu"]) }, state, kv)).toThrow(
    "expected queries sharded along node, gpu, in this order, received queries sharded along gpu; ",
  );
  const unknown = validator({ name: "mine", axis: "gpu", axes: ["rack", "gpu"] });
  const message =
    'mine(gpu), rank 0: expected one of the mesh\'s axes node, gpu, received "rack"; add the axis to init({ mesh }), or set mine({ axis })';
  expect(() => unknown.context(ctx)).toThrow(message);
  expect(() => unknown.attend(ctx, call, state, kv)).toThrow(message);
});

test("an inner backend has an axis of its own, and is asked what it needs of the mesh", () => {
  const inner: AttentionBackend = {
    ...local(),
    axes: ["gpu"],
    check({ mesh }) {
      throw new OptionError({ where: "inner", received: mesh.axes.join() });
    },
  };
  expect(() => validator({ name: "mine", axis: "gpu", inner })).toThrow(
    "mine(gpu): expected an inner backend along a different axis, received local along gpu; use a separate mesh axis for each level of nesting",
  );
  expect(() => validator({ name: "mine", axis: "node", inner }).context(ctx)).toThrow("inner: received node,gpu");
});
