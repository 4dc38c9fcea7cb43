import type { Device, DType } from "@mosaic/core";
import type { Case } from "../check.ts";
import { normals } from "../oracle/numbers.ts";
import { allocate, checkRounded, type MakeDevice, storageOrders, tensorFrom, withDevice } from "./tensors.ts";

const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];
const [heads, rows, pairs] = [2, 5, 9];
const shape = [heads, rows, 2 * pairs];

/** rotary, in both layouts of pairs and both directions. */
export function rotaryCases(make: MakeDevice): Case[] {
  return dtypes.map((dtype) => ({
    name: `rotary, ${dtype}`,
    run: () => withDevice(make, (device) => checkRotary(device, dtype)),
  }));
}

async function checkRotary(device: Device, dtype: DType): Promise<void> {
  const values = normals(heads * rows * 2 * pairs, 1, dtype);
  const angles = normals(rows * pairs, 2);
  const tables = [angles.map(Math.cos), angles.map(Math.sin)].map((table) => Float64Array.from(table, Math.fround));
  const [cosines, sines] = tables as [Float64Array, Float64Array];
  using cos = tensorFrom(device, cosines, { shape: [rows, pairs] });
  using sin = tensorFrom(device, sines, { shape: [rows, pairs] });
  for (const storageOrder of storageOrders) {
    using x = tensorFrom(device, values, { shape, dtype, storageOrder });
    using out = allocate(device, shape, { dtype, storageOrder });
    for (const [interleaved, inverse] of [false, true].flatMap((a) => [false, true].map((b) => [a, b] as const))) {
      device.kernels.rotary(out, x, { cos, sin, interleaved, inverse });
      const expected = Float64Array.from(values);
      for (let row = 0; row < heads * rows; row++) {
        for (let pair = 0; pair < pairs; pair++) {
          const [firstColumn, secondColumn] = interleaved ? [2 * pair, 2 * pair + 1] : [pair, pair + pairs];
          const [i, j] = [row * 2 * pairs + firstColumn, row * 2 * pairs + secondColumn];
          const angleIndex = (row % rows) * pairs + pair;
          const [c, s] = [cosines[angleIndex]!, inverse ? -sines[angleIndex]! : sines[angleIndex]!];
          expected[i] = values[i]! * c - values[j]! * s;
          expected[j] = values[j]! * c + values[i]! * s;
        }
      }
      const description = `rotary ${storageOrder}${interleaved ? ", interleaved" : ""}${inverse ? ", inverse" : ""}`;
      checkRounded(await out.read(), expected, { dtype, scale: 4, description });
    }
  }
}
