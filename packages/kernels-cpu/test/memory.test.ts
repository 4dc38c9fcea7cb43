import { constants, type PerformanceEntry, PerformanceObserver } from "node:perf_hooks";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { ClosedError, OutOfMemoryError, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { cpu } from "../src/index.ts";

const mebibyte = 2 ** 20;

test("memory() reports allocated and reserved bytes and the peak", () => {
  using device = cpu({ threads: 1 });
  expect(device.memory()).toEqual({ allocated: 0, reserved: 0, peak: 0, scratch: 0 });
  const x = device.empty([mebibyte], "float32");
  expect(device.memory().allocated).toBe(4 * mebibyte);
  const y = device.empty([1000], "bfloat16");
  expect(device.memory().allocated).toBe(4 * mebibyte + 2048); // blocks are multiples of 64 bytes
  x[Symbol.dispose]();
  y[Symbol.dispose]();
  const { allocated, reserved, peak } = device.memory();
  expect([allocated, peak]).toEqual([0, 4 * mebibyte + 2048]);
  expect(reserved).toBeGreaterThanOrEqual(4 * mebibyte);
  device.resetPeakMemory();
  expect(device.memory().peak).toBe(0);
  device.trim();
  expect(device.memory().reserved).toBe(0);
});

test("freed memory is reused, and allocations are aligned", () => {
  using device = cpu({ threads: 1 });
  const addresses = new Set<bigint>();
  for (let i = 0; i < 100; i++) {
    using x = device.empty([100], "float32");
    addresses.add(x.storage.handle);
    expect(x.storage.handle % 64n).toBe(0n);
  }
  expect(addresses.size).toBe(1);
  using large = device.empty([3, mebibyte], "float32");
  expect(large.storage.handle % BigInt(2 * mebibyte)).toBe(0n);
});

test("adjacent free blocks are merged, so that all segments can be returned after any order of freeing", () => {
  using device = cpu({ threads: 1 });
  const sizes = Array.from({ length: 300 }, (_, i) => ((i * 7919) % 400) * 257 + 1);
  for (let round = 0; round < 3; round++) {
    const live: Tensor[] = sizes.map((size) => device.empty([size], "float32"));
    const apart = live
      .map((x) => [Number(x.storage.handle), x.storage.byteLength] as const)
      .toSorted(([a], [b]) => a - b);
    for (const [i, [start]] of apart.entries()) {
      if (i > 0) expect(start).toBeGreaterThanOrEqual(apart[i - 1]![0] + apart[i - 1]![1]);
    }
    for (const x of live.filter((_, i) => i % 3 === round)) x[Symbol.dispose]();
    for (const x of live.toReversed()) x[Symbol.dispose]();
    expect(device.memory().allocated).toBe(0);
  }
  device.trim();
  expect(device.memory().reserved).toBe(0);
});

test("an allocation beyond the limit is rejected with the expected and the used memory", async () => {
  using device = cpu({ threads: 1, memoryLimit: 64 * mebibyte });
  using x = device.empty([8 * mebibyte], "float32");
  expect(() => device.empty([9 * mebibyte], "float32")).toThrow(OutOfMemoryError);
  expect(() => device.empty([9 * mebibyte], "float32")).toThrow(
    /cpu:0: empty \[9437184\] float32: expected 36\.0 MiB of free memory, received 32\.0 MiB in use .* limit is 64\.0 MiB; .* raise memoryLimit \(MOSAIC_MEMORY_LIMIT\)$/,
  );
  using y = device.empty([8 * mebibyte], "float32");
  y[Symbol.dispose]();
  using z = device.empty([2, 3 * mebibyte], "float32"); // the cache is trimmed to make room
  device.kernels.fill(x, 1);
  device.kernels.fill(z, 2);
  expect((await z.read()).at(-1)).toBe(2);
});

test("cached segments are reused for other sizes before an allocation fails, in stream order", async () => {
  using device = cpu({ threads: 1, memoryLimit: 64 * mebibyte });
  const reads: Promise<Float32Array>[] = [];
  for (let i = 0; i < 8; i++) {
    using x = device.empty([(i % 2 === 0 ? 15 : 10) * mebibyte], "float32");
    device.kernels.fill(x, i);
    using start = x.slice(0, 0, 2);
    reads.push(start.read());
  }
  const readValues = await Promise.all(reads);
  expect(readValues.map(([first]) => first)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
});

test("allocations of impossible sizes throw OutOfMemoryError at once", () => {
  using device = cpu({ threads: 1 });
  for (const shape of [[2 ** 43], [2 ** 32, 2 ** 32], [1e10, 1e10, 1e10], [Infinity], [-1]]) {
    expect(() => device.empty(shape, "float32")).toThrow(OutOfMemoryError);
  }
  expect(() => device.empty([2 ** 43], "float32")).toThrow(
    /; release the tensors of each step with scope\(\(\) => …\), or shard the sequence over more ranks$/,
  );
  expect(device.memory().allocated).toBe(0);
});

test("scratch memory of kernels is reported, and counts toward the limit", async () => {
  using device = cpu({ threads: 1, memoryLimit: 64 * mebibyte });
  using a = device.empty([1024, 1024], "bfloat16");
  using b = device.empty([1024, 1024], "bfloat16");
  using out = device.empty([1024, 1024], "bfloat16");
  for (const tensor of [a, b]) device.kernels.fill(tensor, 1);
  expect(device.memory().scratch).toBe(0);
  device.kernels.matmul(out, a, b, false);
  await device.stream.synchronize();
  const { scratch, reserved, allocated } = device.memory();
  expect(scratch).toBeGreaterThan(0);
  device.kernels.matmul(out, a, b, false);
  await device.stream.synchronize();
  expect(device.memory().scratch).toBe(scratch);
  // Fills the reserved memory, so that only the part of the limit held by neither tensors nor kernels remains.
  using filler = device.empty([(reserved - allocated) / 4], "float32");
  expect(device.memory()).toMatchObject({ reserved, allocated: reserved, scratch });
  // Memory is reserved in huge pages of 2 MiB.
  const remainingBytes = Math.floor((64 * mebibyte - reserved - scratch!) / (2 * mebibyte)) * 2 * mebibyte;
  expect(() => device.empty([remainingBytes / 4 + 1], "float32")).toThrow(OutOfMemoryError);
  expect(() => device.empty([remainingBytes / 4 + 1], "float32")).toThrow(/held by kernels, the limit is 64\.0 MiB/);
  using remainder = device.empty([remainingBytes / 4], "float32");
  expect(device.memory().allocated).toBe(allocated + filler.storage.byteLength + remainder.storage.byteLength);
  expect(remainder.storage.byteLength).toBe(remainingBytes);
});

test("blocks that are reused without a native call are included in allocated bytes and the peak", () => {
  using device = cpu({ threads: 1 });
  const first = device.empty([3, 5], "float32");
  const { handle } = first.storage;
  first.dispose();
  expect(device.memory()).toMatchObject({ allocated: 0, peak: 64 });
  device.resetPeakMemory();
  using reusedBlock = device.empty([16], "float32"); // the same size class: 64 bytes
  using otherBlock = device.empty([17], "float32");
  expect(reusedBlock.storage.handle).toBe(handle);
  expect(otherBlock.storage.handle).not.toBe(handle);
  expect(device.memory()).toMatchObject({ allocated: 64 + 128, peak: 64 + 128 });
});

test("freed blocks that are cached make room for an allocation of another size", () => {
  using device = cpu({ threads: 1, memoryLimit: 2 * mebibyte });
  // Fills the limit with blocks of 64 KiB. Even blocks are freed first, so that no two of the kept blocks are adjacent.
  const blocks = Array.from({ length: 32 }, () => device.empty([2 ** 14], "float32"));
  expect(() => device.empty([1], "float32")).toThrow(OutOfMemoryError);
  for (const parity of [0, 1]) for (const [i, block] of blocks.entries()) if (i % 2 === parity) block.dispose();
  using half = device.empty([2 ** 18], "float32");
  expect(device.memory()).toMatchObject({ allocated: half.storage.byteLength, reserved: 2 * mebibyte });
});

test("blocks that are cached are released with their device", () => {
  const device = cpu({ threads: 1 });
  device.empty([4], "float32").dispose();
  const heldTensor = device.empty([4], "float32");
  device[Symbol.dispose]();
  heldTensor.dispose();
  expect(() => device.empty([4], "float32")).toThrow(ClosedError);
});

/**
 * Drops references to tensors without disposing them: in reused memory, small and large, one of them through a view.
 */
function dropReferences(device: ReturnType<typeof cpu>): void {
  for (const length of [10, 1000, 2 ** 20]) {
    for (let i = 0; i < 3; i++) device.empty([length], "float32").dispose();
    for (let i = 0; i < 3; i++) device.empty([length], "float32");
    const seen = device.empty([2, length / 2], "float32");
    seen.transpose(0, 1);
    seen.dispose();
  }
}

test("memory of tensors that are not disposed is released by garbage collection", async () => {
  setFlagsFromString("--expose-gc");
  const collectGarbage = runInNewContext("gc") as () => void;
  using device = cpu({ threads: 1 });
  using keptTensor = device.empty([100], "float32");
  dropReferences(device);
  const bytes = keptTensor.storage.byteLength + 48;
  expect(device.memory().allocated).toBeGreaterThan(bytes);
  for (let turn = 0; turn < 50 && device.memory().allocated > bytes; turn++) {
    collectGarbage();
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(device.memory().allocated).toBe(bytes);
  device.trim();
  expect(device.memory().reserved).toBe(2 * mebibyte); // the segment that contains `keptTensor`
});

/** Counts full collections while rounds of eight tensors of 16 MiB are allocated. */
async function countFullCollections(rounds: number, runRound: () => void): Promise<number> {
  let count = 0;
  const observer = new PerformanceObserver((list) => {
    for (const { detail } of list.getEntries() as (PerformanceEntry & { detail: { kind: number } })[])
      if (detail.kind === constants.NODE_PERFORMANCE_GC_MAJOR) count++;
  });
  observer.observe({ entryTypes: ["gc"] });
  for (let round = 0; round < rounds; round++) {
    runRound();
    // Incremental marking, finalizers and observers need turns of the event loop.
    for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setTimeout(resolve, 2));
  }
  observer.disconnect();
  return count;
}

test("tensors that are not disposed trigger garbage collections, and disposed ones do not", async () => {
  using device = cpu({ threads: 1 });
  const allocateTensors = () => Array.from({ length: 8 }, () => device.empty([4 * mebibyte], "float32"));
  // The first rounds raise the reported external memory.
  await countFullCollections(3, () => allocateTensors().forEach((tensor) => tensor.dispose()));
  const rounds = 20;
  const disposing = await countFullCollections(rounds, () => allocateTensors().forEach((tensor) => tensor.dispose()));
  expect(disposing).toBeLessThan(rounds / 2);
  let mostAllocated = 0;
  const losing = await countFullCollections(rounds, () => {
    allocateTensors();
    mostAllocated = Math.max(mostAllocated, device.memory().allocated);
  });
  expect(losing).toBeGreaterThan(2);
  expect(mostAllocated).toBeLessThan((rounds / 2) * 128 * mebibyte);
});

test("a storage that released its memory cannot be used until it adopts other memory", async () => {
  using device = cpu({ threads: 1 });
  using x = device.empty([64], "float32");
  device.kernels.fill(x, 3);
  using view = x.slice(0, 0, 2);
  x.storage.releaseMemory();
  expect(x.storage.isReleased).toBe(true);
  expect(device.memory().allocated).toBe(0);
  expect(() => device.kernels.fill(view, 1)).toThrow(
    /fill: expected a tensor whose storage is allocated, received .*shape \[2\].* freed/,
  );
  expect(() => x.storage.handle).toThrow(/storage is freed/);
  await expect(x.read()).rejects.toThrow(/read: expected a tensor whose storage is allocated/);
  x.storage.releaseMemory(); // idempotent
  using otherTensor = device.empty([64], "float32");
  device.kernels.fill(otherTensor, 7);
  x.storage.adoptMemory(otherTensor.storage);
  expect(Array.from(await view.read())).toEqual([7, 7]);
  expect([x.storage.isReleased, otherTensor.storage.isReleased]).toEqual([false, true]);
  using shortTensor = device.empty([1], "float32");
  expect(() => x.storage.adoptMemory(shortTensor.storage)).toThrow(
    /a source with 256 bytes of memory, for a storage whose memory was released/,
  );
});

test("disposing a storage that released its memory does not free the memory twice", () => {
  using device = cpu({ threads: 1 });
  const x = device.empty([64], "float32");
  x.storage.releaseMemory();
  x.dispose();
  expect(device.memory().allocated).toBe(0);
});
