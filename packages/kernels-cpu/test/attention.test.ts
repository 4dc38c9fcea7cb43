import { DTypeError, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { cpu } from "../src/index.ts";

test("attention refuses to sum in 16 bits: it would write past the end", () => {
  using device = cpu({ threads: 1 });
  const make = (shape: readonly number[], dtype: "float32" | "bfloat16" = "float32"): Tensor =>
    device.empty(shape, dtype);
  const { kernels } = device;
  const rows = [1, 1, 2, 4];
  const [x, sum, lse] = [make(rows, "bfloat16"), make(rows), make(rows.slice(0, 3))];
  const tile = { q: [], k: [], mask: [], scale: 1 };
  const keys = { k: x, v: x };
  expect(() => kernels.attend({ out: sum, lse }, x, keys, tile)).not.toThrow();
  expect(() => kernels.attend({ out: x, lse }, x, keys, tile)).toThrow(DTypeError);
  expect(() => kernels.merge({ out: sum, lse }, { out: x, lse })).toThrow(
    "merge: from.out: expected float32, received bfloat16",
  );
  const saved = { dOut: x, lse, delta: lse };
  for (const odd of ["dq", "dk", "dv"]) {
    const grads = { dq: sum, dk: sum, dv: sum, [odd]: x };
    expect(() => kernels.attendBackward(grads, x, saved, keys, tile)).toThrow(DTypeError);
  }
});
