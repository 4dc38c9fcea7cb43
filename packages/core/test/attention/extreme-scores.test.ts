import { expect, test } from "vitest";
import { emptyState } from "../../src/attention/attention.ts";
import { fromArray, zeros } from "../../src/creation.ts";
import { causal } from "../../src/mask/index.ts";
import { ReferenceDevice, values } from "../reference/index.ts";

const [rows, size, numBlocks] = [12, 4, 3];
const shape = [1, 1, rows, size];

interface Inputs {
  readonly q: readonly number[];
  readonly k: readonly number[];
}

/** Runs forward and backward with one block of keys at a time, as in ring attention. */
async function attendBlockwise({ q, k }: Inputs) {
  const device = new ReferenceDevice();
  const [queries, dOut] = [fromArray(device, q, shape), fromArray(device, values(rows * size, 4), shape)];
  const [keys, v] = [fromArray(device, k, shape), fromArray(device, values(rows * size, 3), shape)];
  const mask = causal().slices(rows, rows);
  const state = emptyState(queries);
  const grads = { dq: zeros(device, shape), dk: zeros(device, shape), dv: zeros(device, shape) };
  const forEachKeyBlock = (visit: (startKey: number, endKey: number) => void) => {
    for (let startKey = 0; startKey < rows; startKey += rows / numBlocks) visit(startKey, startKey + rows / numBlocks);
  };
  const createTile = (startKey: number, endKey: number) => ({
    q: [{ start: 0, length: rows, step: 1 }],
    k: [{ start: startKey, length: endKey - startKey, step: 1 }],
    mask,
    scale: 0.5,
  });
  forEachKeyBlock((startKey, endKey) => {
    const kv = { k: keys.slice(2, startKey, endKey), v: v.slice(2, startKey, endKey) };
    device.kernels.attend(state, queries, kv, createTile(startKey, endKey));
  });
  const delta = zeros(device, shape.slice(0, 3));
  device.kernels.rowDot(delta, dOut, state.out);
  forEachKeyBlock((startKey, endKey) => {
    const kv = { k: keys.slice(2, startKey, endKey), v: v.slice(2, startKey, endKey) };
    const blockGrads = {
      dq: grads.dq,
      dk: grads.dk.slice(2, startKey, endKey),
      dv: grads.dv.slice(2, startKey, endKey),
    };
    device.kernels.attendBackward(
      blockGrads,
      queries,
      { dOut, lse: state.lse, delta },
      kv,
      createTile(startKey, endKey),
    );
  });
  const resultValues = await Promise.all(
    [state.out, state.lse, grads.dq, grads.dk, grads.dv, dOut, v].map((x) => x.read()),
  );
  const [out, lse, dq, dk, dv, dOuts, vs] = resultValues.map((x) => Array.from(x));
  return { out: out!, lse: lse!, dq: dq!, dk: dk!, dv: dv!, dOuts: dOuts!, vs: vs! };
}

const row = (x: readonly number[], i: number) => x.slice(i * size, (i + 1) * size);
const dot = (a: readonly number[], b: readonly number[]) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);

test.each([1e9, 1e10, 1e20, 1e37])("scores of %d select the best key, forward and backward", async (factor) => {
  const q = values(rows * size, 1).map((x) => Math.fround(x * factor));
  const k = values(rows * size, 2).map(Math.fround);
  const actual = await attendBlockwise({ q, k });
  const bestKeys = Array.from({ length: rows }, (_, i) => {
    const scores = Array.from({ length: i + 1 }, (_, j) => dot(row(q, i), row(k, j)));
    return scores.indexOf(Math.max(...scores));
  });
  expect(actual.out).toEqual(bestKeys.flatMap((j) => row(actual.vs, j)));
  const dv = new Array<number>(rows * size).fill(0);
  for (const [i, j] of bestKeys.entries()) for (const [d, x] of row(actual.dOuts, i).entries()) dv[j * size + d]! += x;
  for (const [i, x] of dv.entries()) expect(actual.dv[i]).toBeCloseTo(x, 5);
  for (const x of actual.dq) expect(Math.abs(x)).toBeLessThan(1e-6);
  for (const x of actual.dk) expect(Math.abs(x)).toBeLessThan(1e-6 * factor);
});

test("keys with a score of −Infinity are ignored, and a row of only such keys has lse −Infinity", async () => {
  const q = values(rows * size, 1).map((x, i) => (i % size === 0 ? 1 : x));
  const k = values(rows * size, 2).map((x, i) => (i % size === 0 && i < 6 * size ? -Infinity : x));
  const actual = await attendBlockwise({ q, k });
  expect(actual.lse.slice(0, 6)).toEqual(new Array<number>(6).fill(-Infinity));
  expect(actual.out.slice(0, 6 * size)).toEqual(new Array<number>(6 * size).fill(0));
  expect(row(actual.out, 6)).toEqual(row(actual.vs, 6));
  expect(actual.out.every(Number.isFinite)).toBe(true);
  for (const x of [...actual.dk.slice(0, 6 * size), ...actual.dv.slice(0, 6 * size)]) expect(x).toBe(0);
});
