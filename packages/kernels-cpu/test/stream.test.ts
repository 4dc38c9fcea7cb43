import { type Tensor, ClosedError, DeviceError, OptionError, errorFromFailure } from "@mosaic/core";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { loadCpu } from "../src/addon.ts";
import { type CpuDevice, cpu } from "../src/index.ts";

/** Makes the stream of a device fail, through the ABI that other packages' native code uses. */
function fail(device: CpuDevice, message: string): void {
  loadCpu().fail(device.stream.handle, message);
}

describe("a stream", () => {
  let device: CpuDevice;
  beforeEach(() => {
    device = cpu({ threads: 1 });
  });
  afterEach(() => device[Symbol.dispose]());

  const filled = (on: CpuDevice, value: number, size = 4): Tensor => {
    const x = on.empty([size], "float32");
    on.kernels.fill(x, value);
    return x;
  };

  test("runs works in order", async () => {
    using x = filled(device, 1);
    const reads: Promise<Float32Array>[] = [];
    for (let i = 0; i < 200; i++) {
      device.kernels.scalar("add", x, x, 1);
      reads.push(x.read());
    }
    const got = await Promise.all(reads);
    expect(got.map((values) => values[0])).toEqual(Array.from({ length: 200 }, (_, i) => i + 2));
  });

  test("reads what a tensor held when it was disposed right after", async () => {
    const reads: Promise<Float32Array>[] = [];
    for (let i = 0; i < 100; i++) {
      using x = filled(device, i, 1000);
      reads.push(x.read()); // the next turn reuses the memory
    }
    const got = await Promise.all(reads);
    expect(got.map((values) => values[999])).toEqual(Array.from({ length: 100 }, (_, i) => i));
  });

  test("takes host values at the call", async () => {
    using x = device.empty([3], "float32");
    const values = new Float32Array([1, 2, 3]);
    device.write(x, values);
    values.fill(9);
    expect(Array.from(await x.read())).toEqual([1, 2, 3]);
  });

  test("waits for the fence of another stream, whose work is slow", async () => {
    using other = cpu({ threads: 1, index: 1 });
    using slow = filled(other, 0.5, 1_000_000);
    other.startTrace();
    device.startTrace();
    for (let i = 0; i < 20; i++) other.kernels.unary("tanh", slow, slow);
    device.stream.wait(other.stream.record());
    using x = filled(device, 1);
    const [theirs, ours] = await Promise.all([other.stopTrace(), device.stopTrace()]);
    expect(ours.map((event) => event.name)).toEqual(["wait", "fill"]);
    expect(ours[1]!.start).toBeGreaterThanOrEqual(theirs.at(-1)!.end);
    expect(x.size).toBe(4);
  });

  test("passes fences that are long past, its own, and those of closed devices", async () => {
    const other = cpu({ threads: 1 });
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
    const foreign = { stream: {} } as unknown as Parameters<CpuDevice["stream"]["wait"]>[0];
    expect(() => device.stream.wait(foreign)).toThrow(OptionError);
  });

  test("keeps its first failure, names the operation, and passes it to those who wait", async () => {
    using other = cpu({ threads: 1, index: 1 });
    using x = filled(device, 1);
    fail(device, "the first");
    fail(device, "the second");
    const fence = device.stream.record();
    await expect(device.stream.synchronize()).rejects.toThrow("fail: the first");
    await expect(x.read()).rejects.toThrow(DeviceError);
    expect(() => device.kernels.fill(x, 2)).toThrow("fail: the first");
    using y = filled(other, 1);
    other.stream.wait(fence);
    await expect(y.read()).rejects.toThrow("fail: the first");
  });

  test("does not hear of failures after a fence", async () => {
    using other = cpu({ threads: 1, index: 1 });
    const fence = device.stream.record();
    fail(device, "later");
    await expect(device.stream.synchronize()).rejects.toThrow("later");
    other.stream.wait(fence);
    using y = filled(other, 1);
    expect((await y.read())[0]).toBe(1);
  });

  test("turns every code into its error class", () => {
    const names = [2, 3, 4, 5, 6].map((code) => errorFromFailure(code, "").name);
    expect(names).toEqual([
      "PeerLostError",
      "CollectiveTimeoutError",
      "CollectiveMismatchError",
      "ClosedError",
      "OutOfMemoryError",
    ]);
  });

  test("finishes what was enqueued before dispose, and refuses all after", async () => {
    const x = filled(device, 5, 500_000);
    for (let i = 0; i < 5; i++) device.kernels.unary("tanh", x, x);
    const read = x.read();
    device[Symbol.dispose]();
    device[Symbol.dispose]();
    expect((await read)[0]).toBeCloseTo(Math.tanh(Math.tanh(Math.tanh(Math.tanh(Math.tanh(5))))), 5);
    expect(() => device.kernels.fill(x, 1)).toThrow(ClosedError);
    expect(() => device.empty([1], "float32")).toThrow(ClosedError);
    expect(() => device.stream.record()).toThrow(/cpu:0 after dispose/);
    await expect(x.read()).rejects.toThrow(ClosedError);
    await expect(device.stream.synchronize()).rejects.toThrow(ClosedError);
    x[Symbol.dispose]();
  });

  test("refuses operands of another device, and disposed ones", () => {
    using other = cpu({ threads: 1, index: 1 });
    using x = filled(device, 1);
    using y = filled(other, 1);
    expect(() => device.kernels.binary("add", x, x, y)).toThrow(/add: expected tensors of this device, .*cpu:1/);
    const gone = filled(device, 1);
    gone[Symbol.dispose]();
    expect(() => device.kernels.copy(x, gone)).toThrow(/copy: .*disposed/);
  });

  test("records what it ran, when asked", async () => {
    using x = filled(device, 1);
    device.startTrace();
    device.kernels.unary("exp", x, x);
    device.kernels.scalar("mul", x, x, 2);
    await x.read();
    const events = await device.stopTrace();
    device.kernels.fill(x, 1);
    expect(events.map((event) => event.name)).toEqual(["unary", "scalar", "read"]);
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
});
