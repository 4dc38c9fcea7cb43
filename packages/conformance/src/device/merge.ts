import type { Device } from "@mosaic/core";
import { type Case, checkClose, checkEqual } from "../check.ts";
import { epsilon, normals } from "../oracle/numbers.ts";
import { type MakeDevice, withDevice, tensorFrom } from "./tensors.ts";

const minusInfinity = Number.NEGATIVE_INFINITY;

/** Returns cases of merge. */
export function mergeCases(make: MakeDevice): Case[] {
  return [
    { name: "merge: two states over disjoint keys, including empty states", run: () => withDevice(make, checkMerge) },
    { name: "merge: two states with large lse, equal and far apart", run: () => withDevice(make, checkMergeLarge) },
    { name: "merge: two states, either or both of infinite lse", run: () => withDevice(make, checkMergeInfinite) },
    {
      name: "merge: a state with broadcast rows, such as attention sinks",
      run: () => withDevice(make, checkMergeBroadcast),
    },
  ];
}

async function checkMerge(device: Device): Promise<void> {
  const rows = 8;
  const width = 5;
  const shape = [1, 2, 4, width];
  const a = normals(rows * width, 1);
  const b = normals(rows * width, 2);
  const lseA = Float64Array.from([0, 1, minusInfinity, 2, minusInfinity, 90, -90, 3]);
  const lseB = Float64Array.from([0, -1, 2, minusInfinity, minusInfinity, -90, 90, 2.5]);
  a.fill(0, 2 * width, 3 * width); // empty states hold zeros
  a.fill(0, 4 * width, 5 * width);
  b.fill(0, 3 * width, 5 * width);
  using out = tensorFrom(device, a, { shape });
  using lse = tensorFrom(device, lseA, { shape: shape.slice(0, 3) });
  using otherOut = tensorFrom(device, b, { shape, storageOrder: "gapped" });
  using otherLse = tensorFrom(device, lseB, { shape: shape.slice(0, 3), storageOrder: "gapped" });
  device.kernels.merge({ out, lse }, { out: otherOut, lse: otherLse });

  const expectedLse = lseA.map((x, i) => logAddExp(x, lseB[i]!));
  const mergeWeight = (stateLse: Float64Array, i: number) =>
    expectedLse[i] === minusInfinity ? 0 : Math.exp(stateLse[i]! - expectedLse[i]!);
  const expected = a.map((x, i) => {
    const row = Math.floor(i / width);
    return mergeWeight(lseA, row) * x + mergeWeight(lseB, row) * b[i]!;
  });
  checkClose(await lse.read(), expectedLse, 90 * 4 * epsilon.float32, "lse");
  checkClose(await out.read(), expected, 64 * epsilon.float32, "out");
}

async function checkMergeLarge(device: Device): Promise<void> {
  const [largeLse, largerLse] = [Math.fround(1e20), Math.fround(3e38)];
  using out = tensorFrom(device, [1, 1, 1, 1], { shape: [1, 1, 4, 1] });
  using lse = tensorFrom(device, [largeLse, -largeLse, -largerLse, largerLse], { shape: [1, 1, 4] });
  using otherOut = tensorFrom(device, [2, 2, 2, 2], { shape: [1, 1, 4, 1] });
  using otherLse = tensorFrom(device, [largeLse, -largeLse, largerLse, -largerLse], { shape: [1, 1, 4] });
  device.kernels.merge({ out, lse }, { out: otherOut, lse: otherLse });
  checkEqual(await lse.read(), [largeLse, -largeLse, largerLse, largerLse], "lse");
  checkEqual(await out.read(), [1.5, 1.5, 2, 1], "out");
}

async function checkMergeInfinite(device: Device): Promise<void> {
  const infinity = Number.POSITIVE_INFINITY;
  using out = tensorFrom(device, [1, 1, 1, 1], { shape: [1, 1, 4, 1] });
  using lse = tensorFrom(device, [infinity, 0, infinity, minusInfinity], { shape: [1, 1, 4] });
  using otherOut = tensorFrom(device, [2, 2, 2, 2], { shape: [1, 1, 4, 1] });
  using otherLse = tensorFrom(device, [0, infinity, infinity, infinity], { shape: [1, 1, 4] });
  device.kernels.merge({ out, lse }, { out: otherOut, lse: otherLse });
  checkEqual(await lse.read(), [infinity, infinity, infinity, infinity], "lse");
  checkEqual(await out.read(), [1, 2, 1.5, 2], "out");
}

/** Merges a state with one row of zeros for all rows and one lse for each head, both expanded with strides of 0. */
async function checkMergeBroadcast(device: Device): Promise<void> {
  const [heads, rows, width] = [2, 3, 5];
  const shape = [1, heads, rows, width];
  const a = normals(heads * rows * width, 1);
  const lseA = Float64Array.from([0, minusInfinity, 2, -3, 90, minusInfinity]);
  const sinks = [0.5, minusInfinity];
  using out = tensorFrom(device, a, { shape, storageOrder: "reversed" });
  using lse = tensorFrom(device, lseA, { shape: shape.slice(0, 3) });
  using zeros = tensorFrom(device, new Float64Array(width), { shape: [width] });
  using logits = tensorFrom(device, sinks, { shape: [1, heads, 1] });
  using otherOut = zeros.expand(shape);
  using otherLse = logits.expand(shape.slice(0, 3));
  device.kernels.merge({ out, lse }, { out: otherOut, lse: otherLse });
  const expectedLse = lseA.map((x, i) => logAddExp(x, sinks[Math.floor(i / rows)]!));
  checkClose(await lse.read(), expectedLse, 90 * 4 * epsilon.float32, "lse");
  const expected = a.map((x, i) => {
    const row = Math.floor(i / width);
    // If both states are empty, out keeps its value, whatever it is.
    if (expectedLse[row] === minusInfinity) return x;
    return lseA[row] === minusInfinity ? 0 : x * Math.exp(lseA[row]! - expectedLse[row]!);
  });
  checkClose(await out.read(), expected, 64 * epsilon.float32, "out");
}

function logAddExp(a: number, b: number): number {
  const max = Math.max(a, b);
  return max === minusInfinity ? minusInfinity : max + Math.log(Math.exp(a - max) + Math.exp(b - max));
}
