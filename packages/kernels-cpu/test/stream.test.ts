import { type Tensor, DeviceError, errorFromFailure } from "@mosaic/core";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { loadCpuAddon } from "../src/addon.ts";
import { type CpuDevice, cpu } from "../src/index.ts";

/** Makes the stream of a device fail through the ABI, as native code of other packages would. */
function failStream(device: CpuDevice, message: string): void {
  loadCpuAddon().injectFailure(device.stream.handle, message);
}

describe("a stream", () => {
  let device: CpuDevice;
  beforeEach(() => {
    device = cpu({ threads: 1 });
  });
  afterEach(() => device[Symbol.dispose]());

  const createFilled = (on: CpuDevice, value: number): Tensor => {
    const x = on.empty([4], "float32");
    on.kernels.fill(x, value);
    return x;
  };

  test("keeps its first failure, names the operation, and passes the failure to waiting streams", async () => {
    using otherDevice = cpu({ threads: 1, index: 1 });
    using x = createFilled(device, 1);
    failStream(device, "the first");
    failStream(device, "the second");
    const fence = device.stream.record();
    await expect(device.stream.synchronize()).rejects.toThrow("fail: the first");
    await expect(x.read()).rejects.toThrow(DeviceError);
    expect(() => device.kernels.fill(x, 2)).toThrow("fail: the first");
    using y = createFilled(otherDevice, 1);
    otherDevice.stream.wait(fence);
    await expect(y.read()).rejects.toThrow("fail: the first");
  });

  test("does not pass failures that follow a fence to the streams that wait for it", async () => {
    using otherDevice = cpu({ threads: 1, index: 1 });
    const fence = device.stream.record();
    failStream(device, "later");
    await expect(device.stream.synchronize()).rejects.toThrow("later");
    otherDevice.stream.wait(fence);
    using y = createFilled(otherDevice, 1);
    expect((await y.read())[0]).toBe(1);
  });

  test("maps every failure code to its error class", () => {
    const names = [2, 3, 4, 5, 6].map((code) => errorFromFailure(code, "").name);
    expect(names).toEqual([
      "PeerLostError",
      "CollectiveTimeoutError",
      "CollectiveMismatchError",
      "ClosedError",
      "OutOfMemoryError",
    ]);
  });

  test("records waits and reads in a trace", async () => {
    using otherDevice = cpu({ threads: 1, index: 1 });
    using x = createFilled(device, 1);
    device.startTrace();
    device.stream.wait(otherDevice.stream.record());
    device.kernels.unary("exp", x, x);
    await x.read();
    const events = await device.stopTrace();
    expect(events.map((event) => event.name)).toEqual(["wait", "unary", "read"]);
    for (const [i, { lane, start, end }] of events.entries()) {
      expect(lane).toBe("compute");
      expect(end).toBeGreaterThanOrEqual(start);
      expect(start).toBeGreaterThanOrEqual(events[i - 1]?.end ?? 0);
    }
  });

  test.each([0, 1])("truncates a long message between characters", async (offset) => {
    failStream(device, "x".repeat(offset) + "é".repeat(1021));
    const message = await device.stream.synchronize().then(
      () => "nothing",
      (error: Error) => error.message,
    );
    expect(message).toMatch(/^fail: x?é+$/);
  });

  test("rejects an operand of a device with another index, and names that device", () => {
    using otherDevice = cpu({ threads: 1, index: 1 });
    using x = createFilled(device, 1);
    using y = createFilled(otherDevice, 1);
    expect(() => device.kernels.binary("add", x, x, y)).toThrow(/add: expected a tensor on this device, .*cpu:1/);
  });
});
