import "./emulated.ts";
import { OutOfMemoryError } from "@mosaic/core";
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

test("hands freed memory out again, and asks the system for no more", () => {
  using device = cuda();
  const reserved = Array.from({ length: 100 }, () => {
    using x = device.empty([mebibyte], "float32");
    expect(x.storage.handle % 256n).toBe(0n);
    return device.memory().reserved;
  });
  expect(Math.max(...reserved)).toBe(reserved[0]);
});

test("empty tensors and scalars have memory of their own", async () => {
  using device = cuda();
  using none = device.empty([3, 0], "float32");
  using scalar = device.empty([], "float32");
  device.write(scalar, [7]);
  expect(Array.from(await none.read())).toEqual([]);
  expect(Array.from(await scalar.read())).toEqual([7]);
});

test("a request beyond all memory is an error, not a crash", async () => {
  using device = cuda();
  expect(() => device.empty([2 ** 40, 2 ** 8], "float32")).toThrow(OutOfMemoryError);
  using x = device.empty([2], "float32");
  device.kernels.fill(x, 5);
  expect(Array.from(await x.read())).toEqual([5, 5]);
});

test("devices on one GPU keep separate accounts", () => {
  using one = cuda();
  using other = cuda();
  using x = one.empty([mebibyte], "float32");
  expect(x.size).toBe(mebibyte);
  expect([one.memory().allocated, other.memory().allocated]).toEqual([4 * mebibyte, 0]);
});

test("reads and writes of all sizes at once each get their own values", async () => {
  using device = cuda();
  const sizes = [1, 3, 1000, 1024, 1025, 300_000, 2, 262_144, 70_000, 5];
  const reads = sizes.map((size, i) => {
    using x = device.empty([size], i % 3 === 0 ? "bfloat16" : "float32");
    device.write(x, new Float32Array(size).fill(i));
    return x.read();
  });
  for (const [i, values] of (await Promise.all(reads)).entries()) {
    expect([values.length, values.every((value) => value === i)]).toEqual([sizes[i], true]);
  }
});
