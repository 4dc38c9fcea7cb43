import type { Device } from "@mosaic/core";
import type { Case } from "../case.ts";
import { check, checkEqual } from "../check.ts";
import { normals } from "../oracle/numbers.ts";
import { type MakeDevice, onDevice } from "./on-device.ts";
import { placed, room } from "./place.ts";

/** Memory, reading and writing, order, fences, traces. */
export function memoryCases(make: MakeDevice): Case[] {
  return [
    { name: "write takes the values at the call", run: () => onDevice(make, writeTakes) },
    { name: "read gives what was there at the call", run: () => onDevice(make, readGives) },
    { name: "freed memory is used again, in order", run: () => onDevice(make, reuse) },
    { name: "memory is counted", run: () => onDevice(make, counting) },
    { name: "views keep memory", run: () => onDevice(make, views) },
    { name: "fences and synchronize", run: () => onDevice(make, fences) },
    { name: "a trace says what ran when", run: () => onDevice(make, trace) },
    { name: "many reads at once", run: () => onDevice(make, manyReads) },
  ];
}

async function writeTakes(device: Device): Promise<void> {
  const values = new Float32Array([1, 2, 3, 4]);
  using x = device.empty([2, 2], "float32");
  device.write(x, values);
  values.fill(9);
  checkEqual(await x.read(), [1, 2, 3, 4], "written before the values changed");
  using turned = x.transpose(0, 1);
  device.write(turned, [5, 6, 7, 8]);
  checkEqual(await x.read(), [5, 7, 6, 8], "written through a transpose");
}

async function readGives(device: Device): Promise<void> {
  using x = placed(device, [1, 2, 3], { shape: [3] });
  const before = x.read();
  device.kernels.fill(x, 7);
  const after = x.read();
  checkEqual(await before, [1, 2, 3], "read before");
  checkEqual(await after, [7, 7, 7], "read after");
}

/** What was freed may be handed out at once, while work on the old tensor is still to run: order must keep them apart. */
async function reuse(device: Device): Promise<void> {
  const size = 100_000;
  using total = placed(device, [0], { shape: [1] });
  for (let i = 0; i < 50; i++) {
    using x = device.empty([size], "float32");
    device.kernels.fill(x, i);
    using sum = device.empty([1], "float32");
    device.kernels.reduce("max", sum, x);
    device.kernels.binary("add", total, total, sum);
  }
  checkEqual(await total.read(), [1225], "a sum over memory that was handed out again");
  check(
    device.memory().reserved < 20 * 4 * size,
    `${device.memory().reserved} bytes are kept for 50 tensors of ${4 * size}`,
  );
}

async function counting(device: Device): Promise<void> {
  const before = device.memory().allocated;
  const x = device.empty([1000, 100], "float32");
  const { allocated, reserved, peak } = device.memory();
  check(allocated - before >= 400_000, `${allocated - before} bytes are counted for 400000`);
  check(reserved >= allocated && peak >= allocated, `reserved ${reserved}, peak ${peak}, allocated ${allocated}`);
  x[Symbol.dispose]();
  await device.stream.synchronize();
  check(device.memory().allocated === before, `${device.memory().allocated - before} bytes remain`);
  check(device.memory().peak >= allocated, "the peak was forgotten");
  device.resetPeakMemory();
  check(device.memory().peak === before, `a reset peak of ${device.memory().peak}, expected ${before}`);
}

async function views(device: Device): Promise<void> {
  const x = placed(device, [1, 2, 3, 4, 5, 6], { shape: [2, 3] });
  using column = x.slice(1, 1, 2);
  x[Symbol.dispose]();
  using other = room(device, [2, 3]);
  checkEqual(await column.read(), [2, 5], "a view whose tensor was disposed");
  checkEqual(await other.read(), new Float64Array(6).fill(Number.NaN), "another tensor");
}

async function fences(device: Device): Promise<void> {
  using x = placed(device, [1], { shape: [1] });
  const fence = device.stream.record();
  device.kernels.scalar("add", x, x, 1);
  device.stream.wait(fence); // passed long ago
  device.kernels.scalar("mul", x, x, 10);
  await device.stream.synchronize();
  checkEqual(await x.read(), [20], "work around a fence");
  check(fence.stream === device.stream, "a fence names its stream");
}

async function trace(device: Device): Promise<void> {
  using x = placed(device, normals(10_000, 1), { shape: [100, 100] });
  using out = device.empty([100, 100], "float32");
  await device.stream.synchronize();
  device.startTrace();
  device.kernels.matmul(out, x, x, false);
  device.kernels.unary("exp", out, out);
  const events = (await device.stopTrace()).filter((event) => event.lane === "compute");
  check(
    events.length === 2,
    `2 kernels ran, ${events.length} were recorded: ${events.map((event) => event.name).join()}`,
  );
  const [first, second] = [events[0]!, events[1]!];
  check(first.start <= first.end && first.end <= second.start && second.start <= second.end, "kernels out of order");
}

async function manyReads(device: Device): Promise<void> {
  using x = placed(device, [0], { shape: [1] });
  const reads: Promise<Float32Array>[] = [];
  for (let i = 0; i < 200; i++) {
    reads.push(x.read());
    device.kernels.scalar("add", x, x, 1);
  }
  checkEqual(
    (await Promise.all(reads)).map((values) => values[0]!),
    Array.from({ length: 200 }, (_, i) => i),
    "reads",
  );
}
