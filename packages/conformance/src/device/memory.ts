import type { Device } from "@mosaic/core";
import { type Case, check, checkEqual, checkThrows } from "../check.ts";
import { type MakeDevice, withDevice, tensorFrom, allocate } from "./tensors.ts";

/** Returns cases of memory allocation, reads and writes. */
export function memoryCases(make: MakeDevice): Case[] {
  return [
    { name: "write copies the values before it returns", run: () => withDevice(make, checkWriteCopies) },
    { name: "read returns the values at the time of the call", run: () => withDevice(make, checkReadReturnsLatest) },
    { name: "freed memory is reused, in stream order", run: () => withDevice(make, checkMemoryReuse) },
    { name: "memory statistics count allocations", run: () => withDevice(make, checkAllocationCounts) },
    { name: "views retain memory", run: () => withDevice(make, checkViews) },
    {
      name: "freed memory is reused without further allocations from the system",
      run: () => withDevice(make, checkReservedMemory),
    },
    { name: "empty tensors and scalars have separate storages", run: () => withDevice(make, checkSeparateStorages) },
    {
      name: "an allocation larger than the device memory throws OutOfMemoryError",
      run: () => withDevice(make, checkOversizedAllocation),
    },
    {
      name: "devices have separate memory statistics",
      run: () => withDevice(make, (device) => checkSeparateStatistics(device, make)),
    },
    {
      name: "concurrent reads and writes of all sizes return their own values",
      run: () => withDevice(make, checkConcurrentReads),
    },
  ];
}

async function checkWriteCopies(device: Device): Promise<void> {
  const values = new Float32Array([1, 2, 3, 4]);
  using x = device.empty([2, 2], "float32");
  device.write(x, values);
  values.fill(9);
  checkEqual(await x.read(), [1, 2, 3, 4], "written before the values changed");
  using transposedTensor = x.transpose(0, 1);
  device.write(transposedTensor, [5, 6, 7, 8]);
  checkEqual(await x.read(), [5, 7, 6, 8], "written through a transpose");
  check(
    x.storage.version === 2,
    `expected version 2 after two writes, received ${x.storage.version}; increment it with \`recordMutation\``,
  );
}

async function checkReadReturnsLatest(device: Device): Promise<void> {
  using x = tensorFrom(device, [1, 2, 3], { shape: [3] });
  const earlierRead = x.read();
  device.kernels.fill(x, 7);
  const laterRead = x.read();
  checkEqual(await earlierRead, [1, 2, 3], "read before");
  checkEqual(await laterRead, [7, 7, 7], "read after");
}

/** Freed memory may be reused at once, while kernels on the old tensor are pending. Stream order must separate them. */
async function checkMemoryReuse(device: Device): Promise<void> {
  const size = 100_000;
  using total = tensorFrom(device, [0], { shape: [1] });
  // A driver may reserve far more than the first tensor needs.
  device.empty([size], "float32").dispose();
  const { reserved: reservedBytesBefore } = device.memory();
  for (let i = 0; i < 50; i++) {
    using x = device.empty([size], "float32");
    device.kernels.fill(x, i);
    using sum = device.empty([1], "float32");
    device.kernels.reduce("max", sum, x);
    device.kernels.binary("add", total, total, sum);
  }
  checkEqual(await total.read(), [1225], "a sum over reused memory");
  const reservedGrowthBytes = device.memory().reserved - reservedBytesBefore;
  check(
    reservedGrowthBytes < 20 * 4 * size,
    `expected fewer than ${20 * 4 * size} more bytes reserved for 50 tensors of ${4 * size} bytes, received ${reservedGrowthBytes}`,
  );
}

async function checkAllocationCounts(device: Device): Promise<void> {
  const allocatedBytesBefore = device.memory().allocated;
  const x = device.empty([1000, 100], "float32");
  const { allocated, reserved, peak } = device.memory();
  check(
    allocated - allocatedBytesBefore >= 400_000,
    `expected at least 400000 bytes allocated, received ${allocated - allocatedBytesBefore}`,
  );
  check(
    reserved >= allocated && peak >= allocated,
    `expected at least ${allocated} bytes reserved and at the peak, received ${reserved} and ${peak}`,
  );
  x[Symbol.dispose]();
  await device.stream.synchronize();
  check(
    device.memory().allocated === allocatedBytesBefore,
    `expected ${allocatedBytesBefore} bytes allocated after the disposal, received ${device.memory().allocated}`,
  );
  check(
    device.memory().peak >= allocated,
    `expected a peak of at least ${allocated} bytes after the disposal, received ${device.memory().peak}`,
  );
  device.resetPeakMemory();
  check(
    device.memory().peak === allocatedBytesBefore,
    `peak after a reset: expected ${allocatedBytesBefore} bytes, received ${device.memory().peak}`,
  );
}

async function checkViews(device: Device): Promise<void> {
  const x = tensorFrom(device, [1, 2, 3, 4, 5, 6], { shape: [2, 3] });
  using column = x.slice(1, 1, 2);
  x[Symbol.dispose]();
  using otherTensor = allocate(device, [2, 3]);
  checkEqual(await column.read(), [2, 5], "a view of a disposed tensor");
  checkEqual(await otherTensor.read(), new Float64Array(6).fill(Number.NaN), "another tensor");
}

async function checkReservedMemory(device: Device): Promise<void> {
  const reservedBytes = Array.from({ length: 100 }, () => {
    using x = device.empty([1 << 20], "float32");
    check(x.size === 1 << 20, `expected ${1 << 20} elements, received ${x.size}`);
    return device.memory().reserved;
  });
  checkEqual(reservedBytes, new Array<number>(100).fill(reservedBytes[0]!), "bytes reserved after each tensor");
}

async function checkSeparateStorages(device: Device): Promise<void> {
  using emptyTensor = device.empty([3, 0], "float32");
  using scalar = device.empty([], "float32");
  device.write(scalar, [7]);
  checkEqual(await emptyTensor.read(), [], "an empty tensor");
  checkEqual(await scalar.read(), [7], "a scalar");
}

async function checkOversizedAllocation(device: Device): Promise<void> {
  await checkThrows(
    () => device.empty([2 ** 40, 2 ** 12], "float32"),
    "OutOfMemoryError",
    /expected .* of free memory/,
  );
  using x = device.empty([2], "float32");
  device.kernels.fill(x, 5);
  checkEqual(await x.read(), [5, 5], "memory after a failed allocation");
}

async function checkSeparateStatistics(device: Device, make: MakeDevice): Promise<void> {
  using otherDevice = make();
  using x = device.empty([1 << 20], "float32");
  const [allocatedBytes, otherAllocatedBytes] = [device.memory().allocated, otherDevice.memory().allocated];
  check(
    allocatedBytes === 4 * x.size && otherAllocatedBytes === 0,
    `expected ${4 * x.size} and 0 bytes allocated, received ${allocatedBytes} and ${otherAllocatedBytes}`,
  );
}

async function checkConcurrentReads(device: Device): Promise<void> {
  const sizes = [1, 3, 1000, 1024, 1025, 300_000, 2, 262_144, 70_000, 5];
  const reads = sizes.map((size, i) => {
    using x = device.empty([size], i % 3 === 0 ? "bfloat16" : "float32");
    device.write(x, new Float32Array(size).fill(i));
    return x.read();
  });
  for (const [i, values] of (await Promise.all(reads)).entries()) {
    checkEqual(values, new Float32Array(sizes[i]!).fill(i), `read ${i}`);
  }
}
