import { type Device, DeviceError, DTypeError, full, masks, ShapeError, type Tensor, type Tile } from "@mosaic/core";
import { expect, test } from "vitest";
import { cpu } from "../src/index.ts";

test("attention rejects 16-bit tensors for accumulated outputs and gradients", () => {
  using device = cpu({ threads: 1 });
  const createTensor = (shape: readonly number[], dtype: "float32" | "bfloat16" = "float32"): Tensor =>
    device.empty(shape, dtype);
  const { kernels } = device;
  const rows = [1, 1, 2, 4];
  const [x, sum, lse] = [createTensor(rows, "bfloat16"), createTensor(rows), createTensor(rows.slice(0, 3))];
  const spans = [{ start: 0, length: 2, step: 1 }];
  const tile = { q: spans, k: spans, mask: [], scale: 1 };
  const keys = { k: x, v: x };
  expect(() => kernels.attend({ out: sum, lse }, x, keys, tile)).not.toThrow();
  expect(() => kernels.attend({ out: x, lse }, x, keys, tile)).toThrow(DTypeError);
  expect(() => kernels.merge({ out: sum, lse }, { out: x, lse })).toThrow(
    "merge: from.out: expected float32, received bfloat16",
  );
  const savedTensors = { dOut: x, lse, delta: lse };
  for (const wrongGradient of ["dq", "dk", "dv"]) {
    const grads = { dq: sum, dk: sum, dv: sum, [wrongGradient]: x };
    expect(() => kernels.attendBackward(grads, x, savedTensors, keys, tile)).toThrow(DTypeError);
  }
});

const rows = [1, 1, 4, 8];
const allRows = [{ start: 0, length: 4, step: 1 }];
type ChangedCall = Partial<Pick<Tile, "q" | "k" | "mask">>;

/** Makes a forward and a backward of 4 rows, with changes to the tile. */
function* callsWith(device: Device, change: () => ChangedCall): Generator<() => void> {
  const { kernels } = device;
  const createTensor = (shape: readonly number[]): Tensor => {
    const x = device.empty(shape, "float32");
    kernels.fill(x, 0);
    return x;
  };
  const [x, out, lse] = [createTensor(rows), createTensor(rows), createTensor(rows.slice(0, 3))];
  const createTile = () => ({ q: allRows, k: allRows, mask: masks.causal().slices(4, 4), scale: 1, ...change() });
  const savedTensors = { dOut: x, lse, delta: lse };
  yield () => kernels.attend({ out, lse }, x, { k: x, v: x }, createTile());
  yield () =>
    kernels.attendBackward(
      { dq: out, dk: createTensor(rows), dv: createTensor(rows) },
      x,
      savedTensors,
      { k: x, v: x },
      createTile(),
    );
}

const steps = [0, 0.5, -1, Number.NaN, Number.POSITIVE_INFINITY];
const invalidCalls: ChangedCall[] = [
  ...steps.flatMap((step) => [{ q: [{ start: 0, length: 4, step }] }, { k: [{ start: 0, length: 4, step }] }]),
  ...[-1, 0.5, Number.NaN].map((start) => ({ k: [{ start, length: 4, step: 1 }] })),
  ...[-4, 3, 5, Number.NaN].map((length) => ({ k: [{ start: 0, length, step: 1 }] })),
  { q: [] },
  ...[4, -1, "striped", "toString", undefined].map((type) => ({
    mask: [{ q0: 0, q1: 4, k0: 0, k1: 4, type: type as "full" }],
  })),
  ...[-1, 5, 0.5, Number.NaN].map((q0) => ({ mask: [{ q0, q1: 4, k0: 0, k1: 4, type: "full" as const }] })),
];

test.each(invalidCalls)("attention rejects the invalid tile %j", async (change) => {
  using device = cpu({ threads: 1 });
  for (const call of callsWith(device, () => change)) expect(call).toThrow(ShapeError);
  await device.stream.synchronize();
});

/**
 * Returns an object with one field that is valid when first read, for validation, and invalid when it is read again.
 */
function withChange<T extends object>(target: T, field: keyof T, laterValue: number): T {
  let reads = 0;
  return Object.defineProperty({ ...target }, field, {
    get: () => (reads++ === 0 ? target[field] : laterValue),
    enumerable: true,
  });
}

test.each(steps)("native code rejects a step that becomes %d after validation", async (step) => {
  using device = cpu({ threads: 1 });
  for (const call of callsWith(device, () => ({ q: [withChange(allRows[0]!, "step", step)] }))) {
    expect(call).toThrow(step === 0.5 || step < 1 ? /step ≥ 1/ : /expected a number in the range of int64/);
  }
  for (const call of callsWith(device, () => ({ k: [withChange(allRows[0]!, "step", step)] })))
    expect(call).toThrow(DeviceError);
  const slice = masks.causal().slices(4, 4)[0]!;
  for (const call of callsWith(device, () => ({ mask: [withChange(slice, "q0", 9)] })))
    expect(call).toThrow(/0 ≤ q0 ≤ q1/);
  await device.stream.synchronize();
});

test("native code rejects steps beyond 2^53, also in spans of one row", async () => {
  using device = cpu({ threads: 1 });
  const createSpans = () => [0, 1, 2, 3].map((start) => withChange({ start, length: 1, step: 1 }, "step", 2 ** 60));
  for (const call of callsWith(device, () => ({ k: createSpans() })))
    expect(call).toThrow(/steps and positions up to 2\^53, received .*step 1152921504606846976/);
  await device.stream.synchronize();
});

test("attention rejects 2^31 keys", async () => {
  const device = cpu({ threads: 1 });
  const numKeys = 2 ** 31;
  const x = device.empty(rows, "float32");
  const lse = device.empty(rows.slice(0, 3), "float32");
  const keys = x.slice(2, 0, 1).expand([1, 1, numKeys, 8]);
  device.kernels.attend(
    { out: x, lse },
    x,
    { k: keys, v: keys },
    {
      q: allRows,
      k: [{ start: 0, length: numKeys, step: 1 }],
      mask: [{ q0: 0, q1: 4, k0: numKeys - 1, k1: numKeys, type: "full" }],
      scale: 1,
    },
  );
  await expect(device.stream.synchronize()).rejects.toThrow(
    "expected fewer than 2^31 keys per rank, received 2147483648 keys; shard the sequence over more ranks",
  );
  device[Symbol.dispose]();
});

test("native code rejects spans with more positions than rows", async () => {
  const device = cpu({ threads: 1 });
  const [forward] = callsWith(device, () => {
    let reads = 0;
    const { start, step } = allRows[0]!;
    return {
      k: [
        {
          start,
          step,
          get length() {
            return reads++ < 2 ? 4 : 4096;
          },
        },
      ],
    };
  });
  forward!();
  await expect(device.stream.synchronize()).rejects.toThrow(/expected positions of 4 queries and 4 keys/);
  device[Symbol.dispose]();
});

test("attention leaves a state unchanged if every window lies between two keys of a placement", async () => {
  // Query 10 + 20 i attends to the positions from 8 + 20 i to 10 + 20 i, of which none is a multiple of 20. The windows of
  // all queries together contain keys.
  using device = cpu({ threads: 1 });
  const [length, step] = [64, 20];
  using x = full(device, [1, 1, length, 32], 1);
  using out = full(device, [1, 1, length, 32], 2);
  using lse = full(device, [1, 1, length], 3);
  const tile: Tile = {
    q: [{ start: 10, length, step }],
    k: [{ start: 0, length, step }],
    mask: [{ q0: 10, q1: 1300, k0: 8, k1: 1300, type: "bidirectionalCausal" }],
    scale: 1,
  };
  device.kernels.attend({ out, lse }, x, { k: x, v: x }, tile);
  expect((await out.read()).every((value) => value === 2)).toBe(true);
  expect((await lse.read()).every((value) => value === 3)).toBe(true);
});
