import { describe, expect, test } from "vitest";
import { attention, emptyState } from "../../src/attention/attention.ts";
import { local } from "../../src/attention/backend.ts";
import type { Context } from "../../src/context.ts";
import { fromArray, zeros } from "../../src/creation.ts";
import { DisposedError, DTypeError, OptionError, ShapeError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { causal, documents, full, slidingWindow } from "../../src/mask/index.ts";
import { hasDiagonalEnd, hasDiagonalStart, type Mask } from "../../src/mask/slice.ts";
import { add, scale } from "../../src/ops/pointwise.ts";
import { matmul } from "../../src/ops/matmul.ts";
import { softmax } from "../../src/ops/softmax.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import { scope } from "../../src/scope.ts";
import { type Shape, numel } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";
import { allGatherBackend, ReferenceDevice, referenceWorld, values } from "../reference/index.ts";

const openContext = () => init({ device: new ReferenceDevice({ double: true }) });
const rows = (ctx: Context, length: number, axes: readonly string[] = []) =>
  layoutOf({ mesh: ctx.mesh.shape, axes, length });

function createLeaf(ctx: Context, shape: Shape, seed: number): Tensor {
  const x = fromArray(ctx, values(numel(shape), seed), shape);
  x.requiresGrad = true;
  return x;
}

/** Reference attention composed of operations whose gradients are tested separately. Without grouped heads. */
function referenceAttention(q: Tensor, k: Tensor, v: Tensor, { mask, factor }: { mask: Mask; factor: number }): Tensor {
  const [queries, keys] = [q.shape[2]!, k.shape[2]!];
  const bias = new Array<number>(queries * keys).fill(-Infinity);
  for (const { q0, q1, k0, k1, type } of mask.slices(queries, keys)) {
    for (let i = q0; i < q1; i++) {
      const start = k0 + (hasDiagonalStart(type) ? i - q0 : 0);
      const end = k1 - (hasDiagonalEnd(type) ? q1 - 1 - i : 0);
      for (let j = start; j < end; j++) bias[i * keys + j] = 0;
    }
  }
  const scores = scale(matmul(q, k.transpose(-2, -1)), factor);
  return matmul(softmax(add(scores, fromArray(q.device, bias, [queries, keys]))), v);
}

async function checkAgainstReference(mask: Mask, { sq, sk }: { sq: number; sk: number }): Promise<void> {
  await using ctx = await openContext();
  const results = [];
  for (const hasReferenceFirst of [true, false]) {
    const [q, k, v] = [
      createLeaf(ctx, [2, 3, sq, 4], 1),
      createLeaf(ctx, [2, 3, sk, 4], 2),
      createLeaf(ctx, [2, 3, sk, 4], 3),
    ] as const;
    const out = hasReferenceFirst
      ? referenceAttention(q, k, v, { mask, factor: 0.3 })
      : attention(ctx, q, k, v, { mask, scale: 0.3, queries: rows(ctx, sq), keys: rows(ctx, sk) });
    out.backward(fromArray(ctx, values(out.size, 4), out.shape));
    results.push(await Promise.all([out, q.grad!, k.grad!, v.grad!].map((x) => x.read())));
  }
  for (const [i, expected] of results[0]!.entries()) {
    for (const [j, value] of expected.entries()) expect(results[1]![i]![j]).toBeCloseTo(value, 6);
  }
}

describe("local attention", () => {
  test("matches the reference for a full mask", () => checkAgainstReference(full(), { sq: 5, sk: 5 }));
  test("matches the reference for a causal mask, with queries without visible keys", () =>
    checkAgainstReference(causal(), { sq: 6, sk: 4 }));
  test("matches the reference for a sliding window", () => checkAgainstReference(slidingWindow(2), { sq: 5, sk: 7 }));
  test("matches the reference for causal documents", () =>
    checkAgainstReference(documents([1, 3, 2], "causal"), { sq: 6, sk: 6 }));
});

test("query heads of a group share their KV head, whose gradient is the sum over the group", async () => {
  await using ctx = await openContext();
  const layout = { queries: rows(ctx, 3), keys: rows(ctx, 3) };
  const runAttention = async (repeat: boolean) => {
    const q = createLeaf(ctx, [1, 4, 3, 2], 1);
    const [k, v] = [createLeaf(ctx, [1, 2, 3, 2], 2), createLeaf(ctx, [1, 2, 3, 2], 3)];
    const repeatHeads = (x: Tensor) => x.reshape([1, 2, 1, 3, 2]).expand([1, 2, 2, 3, 2]).reshape([1, 4, 3, 2]);
    const out = repeat ? attention(ctx, q, repeatHeads(k), repeatHeads(v), layout) : attention(ctx, q, k, v, layout);
    out.backward(fromArray(ctx, values(out.size, 4), out.shape));
    return Promise.all([out, q.grad!, k.grad!, v.grad!].map((x) => x.read()));
  };
  const [groupedResults, repeatedResults] = [await runAttention(false), await runAttention(true)];
  for (const [i, groupedValues] of groupedResults.entries()) {
    for (const [j, value] of groupedValues.entries()) expect(repeatedResults[i]![j]).toBeCloseTo(value, 6);
  }
});

test("attention over no keys returns zeros with zero gradients, and emptyState has lse −Infinity", async () => {
  await using ctx = await openContext();
  const q = createLeaf(ctx, [1, 1, 2, 2], 1);
  const emptyRows = zeros(ctx, [1, 1, 0, 2]);
  const out = attention(ctx, q, emptyRows, emptyRows, { queries: rows(ctx, 2), keys: rows(ctx, 0) });
  expect([...(await out.read())]).toEqual([0, 0, 0, 0]);
  out.backward(out.detach());
  expect([...(await q.grad!.read())]).toEqual([0, 0, 0, 0]);
  expect([...(await emptyState(q).lse.read())]).toEqual([-Infinity, -Infinity]);
});

test("layouts default to unsharded sequences, and returnLse returns lse", async () => {
  await using ctx = await openContext();
  for (const dtype of ["float32", "bfloat16"] as const) {
    const [q, k, v] = [
      createLeaf(ctx, [1, 2, 3, 4], 1),
      createLeaf(ctx, [1, 2, 5, 4], 2),
      createLeaf(ctx, [1, 2, 5, 4], 3),
    ].map((x) => x.to(dtype)) as [Tensor, Tensor, Tensor];
    const layoutOptions = { mask: causal(), queries: rows(ctx, 3), keys: rows(ctx, 5) };
    const expected = await attention(ctx, q, k, v, layoutOptions).read();
    expect(await attention(ctx, q, k, v, { mask: causal() }).read()).toEqual(expected);
    const { out, lse } = attention(ctx, q, k, v, { mask: causal(), returnLse: true });
    expect(await out.read()).toEqual(expected);
    expect([lse.shape, lse.dtype, lse.requiresGrad]).toEqual([[1, 2, 3], "float32", false]);
    // A key has the weight exp(score − lse). The weights of all visible keys must sum to 1.
    const scores = await matmul(q, k.transpose(2, 3)).read();
    const actualLse = await lse.read();
    for (let row = 0; row < 6; row++) {
      const visibleExponentials = Array.from(scores.slice(5 * row, 5 * row + 3 + (row % 3)), (score) =>
        Math.exp(score / 2),
      );
      const expectedLse = Math.log(visibleExponentials.reduce((a, b) => a + b));
      expect(actualLse[row]).toBeCloseTo(expectedLse, dtype === "float32" ? 5 : 1);
    }
  }
});

test("the output has the dtype of q and merges its heads without a copy", async () => {
  await using ctx = await openContext();
  const q = zeros(ctx, [1, 2, 3, 4], { dtype: "bfloat16" });
  const out = attention(ctx, q, q, q, { queries: rows(ctx, 3), keys: rows(ctx, 3) });
  expect(out.dtype).toBe("bfloat16");
  expect(out.permute([0, 2, 1, 3]).reshape([1, 3, 8]).storage).toBe(out.storage);
});

test("forward and backward leave no memory allocated", async () => {
  await using ctx = await openContext();
  const [q, k, v] = [1, 2, 3].map((seed) => createLeaf(ctx, [1, 2, 3, 2], seed)) as [Tensor, Tensor, Tensor];
  {
    using out = attention(ctx, q, k, v, { queries: rows(ctx, 3), keys: rows(ctx, 3), mask: causal() });
    using seed = fromArray(ctx, values(out.size), out.shape);
    out.backward(seed);
  }
  for (const x of [q, k, v]) {
    x.grad!.dispose();
    x.dispose();
  }
  expect(ctx.device.memory().allocated).toBe(0);
});

test("a scope releases lse unless it returns it", async () => {
  await using ctx = await openContext();
  using q = createLeaf(ctx, [1, 2, 3, 2], 1);
  const { allocated } = ctx.device.memory();
  const numRows = scope(() => attention(ctx, q, q, q, { returnLse: true }).lse.size);
  expect(numRows).toBe(6);
  expect(ctx.device.memory().allocated).toBe(allocated);
  const { out, lse } = scope(() => attention(ctx, q, q, q, { returnLse: true }));
  expect(await lse.read()).toHaveLength(6);
  out.dispose();
  lse.dispose();
  expect(ctx.device.memory().allocated).toBe(allocated);
});

describe("attention with invalid input", () => {
  const createSetup = async () => {
    const ranks = await referenceWorld(4);
    const ctx = ranks[3]!;
    const layout = rows(ctx, 10, ["sp"]);
    const options = { backend: allGatherBackend(), queries: layout, keys: layout };
    return { ctx, layout, options, x: zeros(ctx, [1, 2, 2, 4]) };
  };

  test("rejects rows that are not this rank's shard", async () => {
    const { ctx, options, x } = await createSetup();
    const k = zeros(ctx, [1, 2, 3, 4]);
    expect(() => attention(ctx, x, k, k, options)).toThrow(ShapeError);
    expect(() => attention(ctx, x, k, k, options)).toThrow(
      /^gather\(sp\), rank 3: keys \[1,2,3,4\]: expected 2 rows, this rank's shard of 10 rows, received 3; pass the placement/,
    );
  });

  test("rejects mismatched numbers of axes, batch sizes, heads and head sizes", async () => {
    const { ctx, options, x } = await createSetup();
    const invalidTensors = [
      zeros(ctx, [2, 2, 4]),
      zeros(ctx, [1, 3, 2, 4]),
      zeros(ctx, [1, 2, 2, 5]),
      zeros(ctx, [2, 2, 2, 4]),
    ];
    for (const k of invalidTensors)
      expect(() => attention(ctx, x, k, k, options)).toThrow(/q \[B,H,Sq,D\].*received q \[1,2,2,4\], k/);
    const oversizedHeads = zeros(ctx, [1, 1, 2, 257]);
    expect(() => attention(ctx, oversizedHeads, oversizedHeads, oversizedHeads, options)).toThrow(
      /D and Dv from 1 to 256/,
    );
  });

  test("rejects a v of another dtype", async () => {
    const { ctx, options, x } = await createSetup();
    expect(() => attention(ctx, x, x, x.to("bfloat16"), options)).toThrow(DTypeError);
  });

  test("rejects a sequence sharded along axes other than the backend's", async () => {
    const { ctx, options, layout, x } = await createSetup();
    expect(() => attention(ctx, x, x, x, { ...options, backend: local() })).toThrow(OptionError);
    const unshardedLayout = { ...layout, axes: [], spans: () => [{ start: 0, length: 2, step: 1 }] };
    expect(() => attention(ctx, x, x, x, { ...options, keys: unshardedLayout })).toThrow(
      /backend's axes, \[sp\], received a sequence sharded along \[\]/,
    );
  });

  test("rejects an invalid scale, option name, backend or mask", async () => {
    const { ctx, options, x } = await createSetup();
    expect(() => attention(ctx, x, x, x, { ...options, scale: NaN })).toThrow(
      /scale: expected a finite number, received NaN/,
    );
    expect(() => attention(ctx, x, x, x, { ...options, causal: true } as object as typeof options)).toThrow(/"causal"/);
    expect(() => attention(ctx, x, x, x, { ...options, backend: "ring" })).toThrow(/@mosaic\/backend-ring/);
    expect(() => attention(ctx, x, x, x, { ...options, mask: documents([9]) })).toThrow(/a sequence of length 9/);
  });

  test("rejects values that are not a Mask or a Layout, and a head size of 0", async () => {
    const { ctx, options, x } = await createSetup();
    const call = (otherOptions: object) => () => attention(ctx, x, x, x, { ...options, ...otherOptions });
    expect(call({ mask: "causal" })).toThrow(/mask: expected a Mask, such as masks.causal\(\).*, received "causal"/);
    for (const name of ["queries", "keys"]) {
      expect(call({ [name]: "zigzag" })).toThrow(`${name}: expected a Layout from layoutOf(), received "zigzag"`);
      expect(call({ [name]: { axes: ["sp"] } })).toThrow(/a Layout from layoutOf\(\), received an object with axes/);
    }
    const empty = zeros(ctx, [1, 2, 2, 0]);
    expect(() => attention(ctx, empty, empty, empty, options)).toThrow(/D and Dv from 1 to 256/);
  });

  test("rejects a disposed tensor and a closed context", async () => {
    const { ctx, options, x } = await createSetup();
    const disposedTensor = x.detach();
    disposedTensor.dispose();
    expect(() => attention(ctx, x, disposedTensor, x, options)).toThrow(DisposedError);
    await ctx.close();
    expect(() => attention(ctx, x, x, x, options)).toThrow(/attention: expected an open context/);
  });
});
