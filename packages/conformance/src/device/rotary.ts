import type { Device, DType } from "@mosaic/core";
import type { Case } from "../check.ts";
import { normals } from "../oracle/numbers.ts";
import { allocate, checkRounded, type MakeDevice, storageOrders, tensorFrom, withDevice } from "./tensors.ts";

const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];
const [HEADS, ROWS, PAIRS] = [2, 5, 9];
const shape = [HEADS, ROWS, 2 * PAIRS];

/** Returns cases of rotary, with both layouts of pairs and in both directions. */
export function rotaryCases(make: MakeDevice): Case[] {
  return dtypes.map((dtype) => ({
    name: `rotary, ${dtype}`,
    run: () => withDevice(make, (device) => checkRotary(device, dtype)),
  }));
}

async function checkRotary(device: Device, dtype: DType): Promise<void> {
  const values = normals(HEADS * ROWS * 2 * PAIRS, 1, dtype);
  const angles = normals(ROWS * PAIRS, 2);
  const tables = [angles.map(Math.cos), angles.map(Math.sin)].map((table) => Float64Array.from(table, Math.fround));
  const [cosines, sines] = tables as [Float64Array, Float64Array];
  using cos = tensorFrom(device, cosines, { shape: [ROWS, PAIRS] });
  using sin = tensorFrom(device, sines, { shape: [ROWS, PAIRS] });
  for (const storageOrder of storageOrders) {
    using x = tensorFrom(device, values, { shape, dtype, storageOrder });
    using out = allocate(device, shape, { dtype, storageOrder });
    for (const [interleaved, inverse] of [false, true].flatMap((a) => [false, true].map((b) => [a, b] as const))) {
      device.kernels.rotary(out, x, { cos, sin, interleaved, inverse });
      const expected = Float64Array.from(values);
      for (let row = 0; row < HEADS * ROWS; row++) {
        for (let pair = 0; pair < PAIRS; pair++) {
          const [firstColumn, secondColumn] = interleaved ? [2 * pair, 2 * pair + 1] : [pair, pair + PAIRS];
          const [i, j] = [row * 2 * PAIRS + firstColumn, row * 2 * PAIRS + secondColumn];
          const angleIndex = (row % ROWS) * PAIRS + pair;
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
