import "./emulated.ts";
import { expect, test } from "vitest";
import { cuda } from "../src/index.ts";

const mebibyte = 2 ** 20;

test("counts what is allocated, reserved, and the peak", async () => {
  using device = cuda();
  const { allocated: before } = device.memory();
  expect(before).toBe(0);
  const x = device.empty([mebibyte], "float32");
  const y = device.empty([1000], "bfloat16");
  expect(device.memory().allocated).toBe(4 * mebibyte + 2000);
  x[Symbol.dispose]();
  y[Symbol.dispose]();
  const { allocated, reserved, peak } = device.memory();
  expect([allocated, peak]).toEqual([0, 4 * mebibyte + 2000]);
  expect(reserved).toBeGreaterThanOrEqual(4 * mebibyte); // kept, to be handed out again
  device.resetPeakMemory();
  expect(device.memory().peak).toBe(0);
  device.trim();
  await device.stream.synchronize();
  expect(device.memory().reserved).toBeLessThan(reserved);
});

test("hands out memory that is aligned as kernels' vectors need it", () => {
  using device = cuda();
  for (const size of [1, 100, mebibyte]) {
    using x = device.empty([size], "float32");
    using y = device.empty([size], "bfloat16");
    for (const { storage } of [x, y]) expect(storage.handle % 256n).toBe(0n);
  }
});
