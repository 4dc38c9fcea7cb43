import "./emulated.ts";
import { ClosedError, OptionError, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { type CudaDevice, cuda } from "../src/index.ts";

function filled(on: CudaDevice, value: number, size = 4): Tensor {
  const x = on.empty([size], "float32");
  on.kernels.fill(x, value);
  return x;
}

test("waits for the fence of another stream, whose work is slow", async () => {
  using device = cuda();
  using other = cuda();
  using slow = filled(other, 0.5, 300_000);
  using x = filled(device, 1);
  other.startTrace();
  device.startTrace();
  other.kernels.unary("tanh", slow, slow);
  device.stream.wait(other.stream.record());
  device.kernels.fill(x, 2);
  const [theirs, ours] = await Promise.all([other.stopTrace(), device.stopTrace()]);
  expect([theirs.map(({ name }) => name), ours.map(({ name }) => name)]).toEqual([["unary"], ["fill"]]);
  // Each device ties its GPU's clock to the host's on its own, as well as it can.
  const { start, end } = theirs[0]!;
  expect(ours[0]!.start).toBeGreaterThan(end - Math.max(1e6, (end - start) / 2));
});

test("passes fences that are long past, its own, and those of closed devices", async () => {
  using device = cuda();
  const other = cuda();
  const early = other.stream.record();
  using y = filled(other, 2);
  const late = other.stream.record();
  await y.read();
  other[Symbol.dispose]();
  for (const fence of [early, late, device.stream.record()]) device.stream.wait(fence);
  using x = filled(device, 3);
  expect((await x.read())[0]).toBe(3);
});

test("refuses a fence of another kind of device", () => {
  using device = cuda();
  const foreign = { stream: {} } as unknown as Parameters<CudaDevice["stream"]["wait"]>[0];
  expect(() => device.stream.wait(foreign)).toThrow(OptionError);
});

test("finishes what was enqueued before dispose, and refuses all after", async () => {
  const device = cuda();
  const x = filled(device, 5, 20_000);
  for (let i = 0; i < 5; i++) device.kernels.unary("tanh", x, x);
  const read = x.read();
  device[Symbol.dispose]();
  device[Symbol.dispose]();
  expect((await read)[19_999]).toBeCloseTo(Math.tanh(Math.tanh(Math.tanh(Math.tanh(Math.tanh(5))))), 5);
  expect(() => device.kernels.fill(x, 1)).toThrow(ClosedError);
  expect(() => device.empty([1], "float32")).toThrow(ClosedError);
  expect(() => device.stream.record()).toThrow(/cuda:0 after dispose/);
  await expect(x.read()).rejects.toThrow(ClosedError);
  await expect(device.stream.synchronize()).rejects.toThrow(ClosedError);
  x[Symbol.dispose]();
});

test("records what it ran while it was asked to, and then no more", async () => {
  using device = cuda();
  using x = filled(device, 1);
  device.startTrace();
  device.kernels.unary("exp", x, x);
  device.kernels.scalar("mul", x, x, 2);
  const stopped = device.stopTrace();
  device.kernels.fill(x, 1); // after the call, though before its answer
  const events = await stopped;
  expect(events.map(({ name }) => name)).toEqual(["unary", "scalar"]);
  const now = Number(process.hrtime.bigint());
  for (const [i, { lane, start, end }] of events.entries()) {
    expect(lane).toBe("compute");
    expect(end).toBeGreaterThanOrEqual(start);
    expect(start).toBeGreaterThanOrEqual(events[i - 1]?.end ?? 0);
    expect(now - start).toBeLessThan(60e9);
  }
  expect(await device.stopTrace()).toEqual([]);
  device.startTrace();
  device.kernels.fill(x, 1);
  const [first, second] = await Promise.all([device.stopTrace(), device.stopTrace()]);
  expect([first.length, second.length]).toEqual([1, 0]);
});

test("refuses operands of another device, and disposed ones", () => {
  using device = cuda();
  using other = cuda();
  using x = filled(device, 1);
  using y = filled(other, 1);
  expect(() => device.kernels.binary("add", x, x, y)).toThrow(
    /add: expected tensors of this device, received one of cuda/,
  );
  const gone = filled(device, 1);
  gone[Symbol.dispose]();
  expect(() => device.kernels.copy(x, gone)).toThrow(/copy: .*disposed/);
});
