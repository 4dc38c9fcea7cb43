import { emulatedBlas, runsOnGpu } from "./emulated.ts";
import { OutOfMemoryError } from "@mosaic/core";
import { expect, test } from "vitest";
import { type CudaDevice, cuda } from "../src/index.ts";

// Read at the first product of a process; this file has its own. On a GPU the real library is used.
if (!runsOnGpu) process.env.MOSAIC_CUBLASLT_LIBRARY ??= emulatedBlas;

const mebibyte = 2 ** 20;

test("memory() reports allocated and reserved bytes and the peak", async () => {
  using device = cuda();
  const { allocated: allocatedBefore } = device.memory();
  expect(allocatedBefore).toBe(0);
  const x = device.empty([16 * mebibyte], "float32"); // a driver reserves at least 32 MiB
  const y = device.empty([1000], "bfloat16");
  expect(device.memory().allocated).toBe(64 * mebibyte + 2000);
  x[Symbol.dispose]();
  y[Symbol.dispose]();
  const { allocated, reserved, peak } = device.memory();
  expect([allocated, peak]).toEqual([0, 64 * mebibyte + 2000]);
  expect(reserved).toBeGreaterThanOrEqual(64 * mebibyte); // retained for reuse
  device.resetPeakMemory();
  expect(device.memory().peak).toBe(0);
  device.trim();
  await device.stream.synchronize();
  expect(device.memory().reserved).toBeLessThan(reserved);
});

test("allocations are aligned to 256 bytes", () => {
  using device = cuda();
  for (const size of [1, 100, mebibyte]) {
    using x = device.empty([size], "float32");
    using y = device.empty([size], "bfloat16");
    for (const { storage } of [x, y]) expect(storage.handle % 256n).toBe(0n);
  }
});

/** Computes the first product of a device, which allocates cuBLASLt's workspace. */
async function multiply(device: CudaDevice): Promise<number> {
  using x = device.empty([4, 4], "float32");
  device.kernels.fill(x, 1);
  using out = device.empty([4, 4], "float32");
  device.kernels.matmul(out, x, x, false);
  return (await out.read())[0]!;
}

test("scratch memory of kernels is reported separately, and counts toward the limit", async () => {
  using device = cuda({ memoryLimit: 64 * mebibyte });
  expect(device.memory()).toMatchObject({ allocated: 0, scratch: 0 });
  expect(await multiply(device)).toBe(4);
  const { scratch, reserved } = device.memory();
  expect(scratch).toBe((device.capability >= 90 ? 32 : 8) * mebibyte);
  expect(reserved).toBeLessThanOrEqual(scratch!);
  expect(await multiply(device)).toBe(4);
  expect(device.memory().scratch).toBe(scratch);
  // Exceeds the limit by one element.
  const remainingElements = (64 * mebibyte - scratch!) / 4;
  expect(() => device.empty([remainingElements + 1], "float32")).toThrow(OutOfMemoryError);
  expect(() => device.empty([remainingElements + 1], "float32")).toThrow(/MiB held by kernels, the limit is 64\.0 MiB/);
  using remainder = device.empty([remainingElements], "float32");
  expect(device.memory()).toMatchObject({ allocated: 4 * remainder.size, scratch });
});

test("products are computed without a workspace if the limit has no room for one", async () => {
  using device = cuda({ memoryLimit: mebibyte });
  expect(await multiply(device)).toBe(4);
  expect(device.memory().scratch).toBe(0);
});
