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
const allocateTensor = (shape: Shape, dtype: DType = "float32"): Tensor => ctx.device.empty(shape, dtype);
const layout = (axes: readonly string[]) => layoutOf({ mesh: ctx.mesh.shape, axes, length: 5 });

/** Creates a valid call: 5 tokens, 4 query and 2 KV heads. */
function createValidCall(): { call: AttentionCall & SavedRows; state: AttentionState; grads: QkvGrads; kv: KvShard } {
  const at = { node: 0, gpu: 0 };
  const [q, dOut, k, v] = [
    allocateTensor([1, 4, 5, 8]),
    allocateTensor([1, 4, 5, 8]),
    allocateTensor([1, 2, 5, 8]),
    allocateTensor([1, 2, 5, 8]),
  ];
  const rows = layout(["node", "gpu"]);
  return {
    call: {
      q,
      dOut,
      lse: allocateTensor([1, 4, 5]),
      delta: allocateTensor([1, 4, 5]),
      at,
      scale: 1,
      mask: [],
      queries: rows,
      keys: rows,
    },
    state: { out: allocateTensor([1, 4, 5, 8]), lse: allocateTensor([1, 4, 5]) },
    grads: { dq: allocateTensor([1, 4, 5, 8]), dk: allocateTensor([1, 2, 5, 8]), dv: allocateTensor([1, 2, 5, 8]) },
    kv: { k, v, from: at },
  };
}

test("a valid call passes validation, forward and backward", () => {
  const { call, state, grads, kv } = createValidCall();
  validate.context(ctx);
  validate.attend(ctx, call, state, kv);
  validate.attendBackward(ctx, call, grads, kv);
});

test("layouts that are not layouts are rejected", () => {
  for (const layouts of [[1, 2], {}, { queries: layout(["gpu"]) }, { queries: layout(["gpu"]), keys: [] }, 1]) {
    expect(() => validate.context(ctx, layouts as never)).toThrow(OptionError);
    expect(() => validate.context(ctx, layouts as never)).toThrow(/layouts \{ queries, keys \} with a Layout of the/);
  }
});

describe("validator", () => {
  const createForward =
    (modifyCall: (validInputs: ReturnType<typeof createValidCall>) => Partial<ReturnType<typeof createValidCall>>) =>
    () => {
      const validInputs = createValidCall();
      const { call, state, kv } = { ...validInputs, ...modifyCall(validInputs) };
      validate.attend(ctx, call, state, kv);
    };
  const createBackward =
    (modifyCall: (validInputs: ReturnType<typeof createValidCall>) => Partial<ReturnType<typeof createValidCall>>) =>
    () => {
      const validInputs = createValidCall();
      const { call, grads, kv } = { ...validInputs, ...modifyCall(validInputs) };
      validate.attendBackward(ctx, call, grads, kv);
    };
  const remedies = {
    shape: (referenceName: string) => `use the shape of ${referenceName}`,
    sum: "accumulate in float32, and round once at the end",
  };

  test.each<[string, () => void, string]>([
    [
      "rows",
      createForward(({ kv }) => ({ kv: { ...kv, k: allocateTensor([1, 2, 6, 8]) } })),
      "keys [B,H,5,D], as specified by their layout, received [1,2,6,8]; create the layout with the placement and the length that the sequence was sharded with",
    ],
    [
      "heads",
      createForward(({ kv }) => ({ kv: { ...kv, k: allocateTensor([1, 3, 5, 8]) } })),
      "keys [1,Hkv,S,8] with Hkv a divisor of the 4 query heads, received [1,3,5,8]; reshape q to [B,H,S,D] and k to [B,Hkv,S,D], with the same B and D, and H divisible by Hkv",
    ],
    [
      "values",
      createForward(({ kv }) => ({ kv: { ...kv, v: allocateTensor([1, 2, 4, 8]) } })),
      `values of the keys' shape [1,2,5,8], received [1,2,4,8]; ${remedies.shape("k, except for the head size")}`,
    ],
    [
      "values of another head size than the result",
      createForward(({ kv }) => ({ kv: { ...kv, v: allocateTensor([1, 2, 5, 4]) } })),
      `out [1,4,5,4], received [1,4,5,8]; ${remedies.shape("q, with the head size of v")}`,
    ],
    [
      "dtypes of inputs",
      createForward(({ call }) => ({ call: { ...call, q: allocateTensor([1, 4, 5, 8], "float16") } })),
      "queries with the dtype of the keys, float32, received float16; convert with to(dtype)",
    ],
    [
      "out",
      createForward(({ state }) => ({ state: { ...state, out: allocateTensor([1, 4, 5, 8], "bfloat16") } })),
      `out of dtype float32, received bfloat16; ${remedies.sum}`,
    ],
    [
      "lse",
      createForward(({ state }) => ({ state: { ...state, lse: allocateTensor([1, 4, 5, 1]) } })),
      `lse [1,4,5], received [1,4,5,1]; ${remedies.shape("q without the last axis")}`,
    ],
    [
      "sequences",
      createForward(({ call }) => ({ call: { ...call, queries: layout([]) } })),
      "queries sharded along gpu, received unsharded queries; shard with a layout along backend.axes; otherwise (query, key) pairs are counted more than once",
    ],
    [
      "places",
      createForward(({ kv }) => ({ kv: { ...kv, from: { node: 0 } } })),
      'this rank\'s shard of the keys, gpu = 0, received keys from {"node":0}; use each mesh axis in one backend only: another backend already gathers along it',
    ],
  ])("rejects invalid %s with location, expected and received values, and remedy", (_, run, message) =>
    expect(run).toThrow(`mine(gpu), rank 0: expected ${message}`),
  );

  test.each<[string, () => void, string]>([
    [
      "dOut",
      createBackward(({ call }) => ({ call: { ...call, dOut: allocateTensor([1, 4, 5, 4]) } })),
      `dOut [1,4,5,8], received [1,4,5,4]; ${remedies.shape("q")}`,
    ],
    [
      "delta",
      createBackward(({ call }) => ({ call: { ...call, delta: allocateTensor([1, 4, 5], "float16") } })),
      `delta of dtype float32, received float16; ${remedies.sum}`,
    ],
    [
      "dk",
      createBackward(({ grads }) => ({ grads: { ...grads, dk: allocateTensor([1, 4, 5, 8]) } })),
      `dk [1,2,5,8], received [1,4,5,8]; ${remedies.shape("k")}`,
    ],
  ])("rejects an invalid %s in the backward", (_, run, message) =>
    expect(run).toThrow(`mine(gpu) backward, rank 0: expected ${message}`),
  );

  test("rejects a disposed output and a closed context", async () => {
    const disposedStateCall = createForward(({ state }) => {
      state.out.dispose();
      return {};
    });
    expect(disposedStateCall).toThrow(DisposedError);
    const { call, state, kv } = createValidCall();
    await ctx.close();
    expect(() => validate.attend(ctx, call, state, kv)).toThrow(ClosedError);
  });
});

test("unsharded queries are accepted unless the validator requires sharded queries", () => {
  const { call, state, kv } = createValidCall();
  const unshardedCall = { ...call, queries: layout([]) };
  validator({ name: "mine", axis: "gpu" }).attend(ctx, unshardedCall, state, kv);
  expect(() => validate.attend(ctx, unshardedCall, state, kv)).toThrow(OptionError);
});

test("sequences must be sharded along all axes in order, and the axes must exist in the mesh", () => {
  const axes = ["node", "gpu"];
  const orderedAxesValidator = validator({ name: "mine", axis: "gpu", axes, sharded: ["queries", "keys"] });
  const { call, state, kv } = createValidCall();
  orderedAxesValidator.attend(ctx, call, state, kv);
  expect(() => orderedAxesValidator.attend(ctx, { ...call, keys: layout(["gpu", "node"]) }, state, kv)).toThrow(
    "mine(gpu), rank 0: expected keys sharded along node, gpu, in this order, received keys sharded along gpu, node; ",
  );
  expect(() => orderedAxesValidator.attend(ctx, { ...call, queries: layout(["gpu"]) }, state, kv)).toThrow(
    "expected queries sharded along node, gpu, in this order, received queries sharded along gpu; ",
  );
  const unknownAxisValidator = validator({ name: "mine", axis: "gpu", axes: ["rack", "gpu"] });
  const message =
    'mine(gpu), rank 0: expected one of the mesh\'s axes node, gpu, received "rack"; add the axis to init({ mesh }), or set mine({ axis })';
  expect(() => unknownAxisValidator.context(ctx)).toThrow(message);
  expect(() => unknownAxisValidator.attend(ctx, call, state, kv)).toThrow(message);
});

test("an inner backend must use a different axis, and its mesh check is called", () => {
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

test("an inner backend checks the layouts of a call", () => {
  const innerValidator = validator({ name: "inner", axis: "gpu", axes: ["node", "gpu"], sharded: ["queries", "keys"] });
  const inner: AttentionBackend = { ...local(), check: (...args) => innerValidator.context(...args) };
  const outerValidator = validator({ name: "outer", axis: "node", inner });
  const [valid, invalid] = [layout(["node", "gpu"]), layout(["gpu", "node"])];
  outerValidator.context(ctx, { queries: valid, keys: valid });
  expect(() => outerValidator.context(ctx, { queries: valid, keys: invalid })).toThrow(
    "inner(gpu), rank 0: expected keys sharded along node, gpu, in this order, received keys sharded along gpu, node; ",
  );
  expect(() => outerValidator.context(ctx, { queries: valid, keys: layout(["gpu"]) })).toThrow(
    "outer(node), rank 0: expected keys sharded along node, received keys sharded along gpu; ",
  );
});
