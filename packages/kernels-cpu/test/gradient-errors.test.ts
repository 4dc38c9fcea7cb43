import { masks, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { createGenerator, onEveryIsa } from "./sample.ts";

const [rows, columns] = [384, 16];
const span = [{ start: 0, length: rows, step: 1 }];

// With queries of zeros, every weight of a row is e^(−lse), and every row of dv is the sum of e^(−lse) · dOut over rows.
onEveryIsa("rounding errors of gradients", (device) => {
  /** Returns a row of dv. `lse` has one number for each row. */
  async function computeValueGradient(lse: ArrayLike<number>, dOut: ArrayLike<number>): Promise<ArrayLike<number>> {
    const create = (shape: readonly number[], values: ArrayLike<number>): Tensor => {
      const x = device().empty(shape, "float32");
      device().write(x, values);
      return x;
    };
    const [matrix, zeros] = [[1, 1, rows, columns], new Float32Array(rows * columns)];
    const [q, k, v, dq, dk, dv] = Array.from({ length: 6 }, () => create(matrix, zeros));
    const statistics = [1, 1, rows];
    const saved = {
      dOut: create(matrix, dOut),
      lse: create(statistics, lse),
      delta: create(statistics, zeros.subarray(0, rows)),
    };
    const tile = { q: span, k: span, mask: masks.full().slices(rows, rows), scale: 1 };
    device().kernels.attendBackward({ dq: dq!, dk: dk!, dv: dv! }, q!, saved, { k: k!, v: v! }, tile);
    const result = (await dv!.read()).slice(0, columns);
    for (const x of [q, k, v, dq, dk, dv, saved.dOut, saved.lse, saved.delta]) x![Symbol.dispose]();
    return result;
  }

  test("weights have the precision of float32 for an lse of up to 80", async () => {
    for (const sign of [1, -1]) {
      for (let trial = 0; trial < 4; trial++) {
        const random = createGenerator(trial);
        const lse = Float32Array.from({ length: rows }, () => sign * (40 + 40 * random()));
        // Column d sums one row.
        const dOut = Float32Array.from({ length: rows * columns }, (_, i) =>
          Math.floor(i / columns) === 24 * (i % columns) ? 1 : 0,
        );
        const dv = await computeValueGradient(lse, dOut);
        for (let d = 0; d < columns; d++) {
          const expected = Math.exp(-lse[24 * d]!);
          expect(Math.abs(dv[d]! - expected) / expected).toBeLessThan(5e-7);
        }
      }
    }
  });

  test("weights of a row sum to 1 for scores of up to 80", async () => {
    const random = createGenerator(2);
    const create = (shape: readonly number[], value: () => number): Tensor => {
      const x = device().empty(shape, "float32");
      device().write(x, Float32Array.from({ length: shape.reduce((a, b) => a * b) }, value));
      return x;
    };
    const matrix = [1, 1, rows, columns];
    const [q, k] = [create(matrix, () => 4.5 * random()), create(matrix, () => 4.5 * random())];
    const [v, dOut] = [create(matrix, () => 0), create(matrix, () => 1)];
    const [out, dq, dk, dv] = Array.from({ length: 4 }, () => create(matrix, () => 0));
    const lse = create([1, 1, rows], () => Number.NEGATIVE_INFINITY);
    const delta = create([1, 1, rows], () => 0);
    const tile = { q: span, k: span, mask: masks.full().slices(rows, rows), scale: 1 };
    device().kernels.attend({ out: out!, lse }, q, { k, v }, tile);
    device().kernels.attendBackward({ dq: dq!, dk: dk!, dv: dv! }, q, { dOut, lse, delta }, { k, v }, tile);
    const sums = new Float64Array(columns);
    for (const [i, x] of (await dv!.read()).entries()) sums[i % columns]! += x;
    for (const sum of sums) expect(Math.abs(sum / rows - 1)).toBeLessThan(2e-7);
    for (const x of [q, k, v, dOut, out, dq, dk, dv, lse, delta]) x![Symbol.dispose]();
  });

  test("sums over many rows lose no more digits than sums over few", async () => {
    const random = createGenerator(1);
    const dOut = Float32Array.from({ length: rows * columns }, () => 1.5 + random() / 2);
    const dv = await computeValueGradient(new Float32Array(rows), dOut);
    let squares = 0;
    for (let d = 0; d < columns; d++) {
      let expected = 0;
      for (let row = 0; row < rows; row++) expected += dOut[row * columns + d]!;
      squares += (dv[d]! / expected - 1) ** 2;
    }
    expect(Math.sqrt(squares / columns)).toBeLessThan(1.2e-7);
  });
});
