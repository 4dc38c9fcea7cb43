import { type Device, type Fence, formatDevice, type Tensor, type TraceEvent } from "@mosaic/core";
import { type Case, check, checkClose, checkEqual, checkThrows } from "../check.ts";
import { normals } from "../oracle/numbers.ts";
import { type MakeDevice, withDevice, tensorFrom } from "./tensors.ts";

/**
 * Returns cases of order within and between streams, of failures and of disposal. `clockError`: see DeviceSuiteOptions.
 */
export function streamCases(make: MakeDevice, clockError: number): Case[] {
  const createStreamCase = (name: string, body: (device: Device) => Promise<void>): Case => ({
    name,
    run: () => withDevice(make, body),
  });
  return [
    createStreamCase("fences and synchronize", checkFences),
    createStreamCase("waits for a fence of a slower stream", (device) =>
      checkCrossStreamWait(device, make, clockError),
    ),
    createStreamCase("does not block on completed fences, its own fences, or fences of closed devices", (device) =>
      checkCompletedFences(device, make),
    ),
    createStreamCase("rejects a fence of another device type", checkForeignFence),
    createStreamCase("concurrent reads", checkConcurrentReads),
    createStreamCase("a read returns the values of a tensor that is disposed after the call", checkDisposeAfterEnqueue),
    createStreamCase("reports its first failure and executes no further work", checkFirstFailure),
    createStreamCase("executes all work enqueued before dispose and rejects later work", checkDisposed),
    createStreamCase("rejects disposed operands and operands of another device", (device) =>
      checkForeignOperands(device, make),
    ),
  ];
}

function fullTensor(device: Device, value: number, size = 4): Tensor {
  const x = device.empty([size], "float32");
  device.kernels.fill(x, value);
  return x;
}

async function checkCrossStreamWait(device: Device, make: MakeDevice, clockError: number): Promise<void> {
  using otherDevice = make();
  using slowTensor = fullTensor(otherDevice, 0.5, 300_000);
  using x = fullTensor(device, 1);
  otherDevice.startTrace();
  device.startTrace();
  for (let i = 0; i < 4; i++) otherDevice.kernels.unary("tanh", slowTensor, slowTensor);
  device.stream.wait(otherDevice.stream.record());
  device.kernels.fill(x, 2);
  const [otherEvents, deviceEvents] = await Promise.all([otherDevice.stopTrace(), device.stopTrace()]);
  const [firstEvent, lastEvent] = [otherEvents[0]!, otherEvents.at(-1)!];
  const fillEvent = deviceEvents.find(({ name }) => name === "fill");
  check(
    fillEvent !== undefined && otherEvents.length === 4,
    `expected 4 kernels on the other device and fill on this device, received ${eventNames(otherEvents)} and ${eventNames(deviceEvents)}`,
  );
  const maxOverlapNs = clockError && Math.max(clockError, (lastEvent.end - firstEvent.start) / 2);
  check(
    fillEvent.start >= lastEvent.end - maxOverlapNs,
    `expected fill to start at most ${maxOverlapNs} ns before the other stream completed, received ${lastEvent.end - fillEvent.start} ns`,
  );
}

async function checkCompletedFences(device: Device, make: MakeDevice): Promise<void> {
  const otherDevice = make();
  const earlyFence = otherDevice.stream.record();
  using y = fullTensor(otherDevice, 2);
  const lateFence = otherDevice.stream.record();
  await y.read();
  otherDevice[Symbol.dispose]();
  for (const fence of [earlyFence, lateFence, device.stream.record()]) device.stream.wait(fence);
  using x = fullTensor(device, 3);
  checkEqual(await x.read(), [3, 3, 3, 3], "work after fences");
}

async function checkForeignFence(device: Device): Promise<void> {
  const otherFence = { stream: {} } as unknown as Fence;
  await checkThrows(() => device.stream.wait(otherFence), "OptionError", /received a fence of another device type/);
}

async function checkDisposeAfterEnqueue(device: Device): Promise<void> {
  const reads: Promise<Float32Array>[] = [];
  for (let i = 0; i < 100; i++) {
    using x = fullTensor(device, i, 1000);
    reads.push(x.read()); // the next iteration reuses the memory
  }
  for (const [i, values] of (await Promise.all(reads)).entries()) {
    checkEqual(values, new Float32Array(1000).fill(i), `read ${i}`);
  }
}

async function checkFirstFailure(device: Device): Promise<void> {
  using table = tensorFrom(device, [1, 2, 3], { shape: [3, 1] });
  using firstIndex = tensorFrom(device, [7], { shape: [1] });
  using secondIndex = tensorFrom(device, [9], { shape: [1] });
  using out = device.empty([1, 1], "float32");
  const failurePattern = /gatherRows: .*received 7/;
  device.kernels.gatherRows(out, table, firstIndex);
  // The second call is enqueued, or throws the first failure if that has been detected already.
  try {
    device.kernels.gatherRows(out, table, secondIndex);
  } catch (error) {
    check(failurePattern.test(String(error)), `expected the first failure, received ${error}`);
  }
  await checkThrows(() => device.stream.synchronize(), "DeviceError", failurePattern);
  await checkThrows(() => out.read(), "DeviceError", failurePattern);
  await checkThrows(() => device.kernels.fill(out, 1), "DeviceError", failurePattern);
  await checkThrows(() => device.stream.synchronize(), "DeviceError", failurePattern);
}

async function checkDisposed(device: Device): Promise<void> {
  const x = fullTensor(device, 5, 100_000);
  for (let i = 0; i < 5; i++) device.kernels.unary("tanh", x, x);
  const readPromise = x.read();
  device[Symbol.dispose]();
  device[Symbol.dispose]();
  const expected = Math.tanh(Math.tanh(Math.tanh(Math.tanh(Math.tanh(5)))));
  checkClose(await readPromise, new Float64Array(100_000).fill(expected), 5e-6, "work enqueued before dispose");
  const disposedDevicePattern = new RegExp(`${formatDevice(device)} after dispose`);
  await checkThrows(() => device.kernels.fill(x, 1), "ClosedError", disposedDevicePattern);
  await checkThrows(() => device.empty([1], "float32"), "ClosedError", disposedDevicePattern);
  await checkThrows(() => device.stream.record(), "ClosedError", disposedDevicePattern);
  await checkThrows(() => x.read(), "ClosedError", disposedDevicePattern);
  await checkThrows(() => device.stream.synchronize(), "ClosedError", disposedDevicePattern);
  x[Symbol.dispose]();
}

async function checkForeignOperands(device: Device, make: MakeDevice): Promise<void> {
  using otherDevice = make();
  using x = fullTensor(device, 1);
  using y = fullTensor(otherDevice, 1);
  const foreignPattern = new RegExp(
    `add: expected a tensor on this device, received a tensor on ${formatDevice(otherDevice)}`,
  );
  await checkThrows(() => device.kernels.binary("add", x, x, y), "OptionError", foreignPattern);
  const disposedTensor = fullTensor(device, 1);
  disposedTensor[Symbol.dispose]();
  await checkThrows(() => device.kernels.copy(x, disposedTensor), "DisposedError", /copy: .*disposed/);
}

async function checkFences(device: Device): Promise<void> {
  using x = tensorFrom(device, [1], { shape: [1] });
  const fence = device.stream.record();
  device.kernels.scalar("add", x, x, 1);
  device.stream.wait(fence); // no effect: the fence is earlier in the same stream
  device.kernels.scalar("mul", x, x, 10);
  await device.stream.synchronize();
  checkEqual(await x.read(), [20], "work before and after a fence");
  check(
    fence.stream === device.stream,
    "fence.stream: expected the stream that recorded the fence, received a different one",
  );
}

async function checkConcurrentReads(device: Device): Promise<void> {
  using x = tensorFrom(device, [0], { shape: [1] });
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

/** Returns cases of the traces of a device. */
export function traceCases(make: MakeDevice): Case[] {
  return [
    { name: "a trace lists the kernels with start and end times", run: () => withDevice(make, checkTrace) },
    { name: "records kernels between startTrace and stopTrace only", run: () => withDevice(make, checkTraceOnRequest) },
  ];
}

async function checkTrace(device: Device): Promise<void> {
  using x = tensorFrom(device, normals(10_000, 1), { shape: [100, 100] });
  using out = device.empty([100, 100], "float32");
  await device.stream.synchronize();
  device.startTrace();
  device.kernels.matmul(out, x, x, false);
  device.kernels.unary("exp", out, out);
  const events = (await device.stopTrace()).filter((event) => event.lane === "compute");
  check(
    events.length === 2,
    `expected 2 recorded kernels, received ${events.length}: ${events.map((event) => event.name).join()}`,
  );
  const [firstEvent, secondEvent] = [events[0]!, events[1]!];
  check(
    firstEvent.start <= firstEvent.end && firstEvent.end <= secondEvent.start && secondEvent.start <= secondEvent.end,
    `expected kernels in order of time, received ${firstEvent.start} to ${firstEvent.end} ns, ${secondEvent.start} to ${secondEvent.end} ns`,
  );
}

async function checkTraceOnRequest(device: Device): Promise<void> {
  using x = tensorFrom(device, [1, 1], { shape: [2] });
  device.startTrace();
  device.kernels.unary("exp", x, x);
  device.kernels.scalar("mul", x, x, 2);
  const stopPromise = device.stopTrace();
  device.kernels.fill(x, 1); // after the call to stopTrace, but before its result
  const events = await stopPromise;
  check(
    eventNames(events) === "unary,scalar",
    `expected recorded kernels unary,scalar, received ${eventNames(events)}`,
  );
  const now = Number(process.hrtime.bigint());
  let previousEnd = 0;
  for (const { name, lane, start, end } of events) {
    check(lane === "compute", `${name}: expected lane compute, received ${lane}`);
    check(
      end >= start && start >= previousEnd,
      `${name}: expected a start ≥ ${previousEnd} ns, the end of the previous kernel, received ${start} to ${end} ns`,
    );
    check(
      Math.abs(now - start) < 60e9,
      `${name}: expected a start within 60 s of now, received a difference of ${now - start} ns`,
    );
    previousEnd = end;
  }
  const extraEvents = await device.stopTrace();
  check(extraEvents.length === 0, `expected 0 kernels recorded without startTrace, received ${extraEvents.length}`);
  device.startTrace();
  device.kernels.fill(x, 1);
  const lengths = (await Promise.all([device.stopTrace(), device.stopTrace()])).map(({ length }) => length);
  checkEqual(lengths, [1, 0], "event counts of the first and the second stopTrace");
}

function eventNames(events: readonly TraceEvent[]): string {
  return events.map(({ name }) => name).join();
}
