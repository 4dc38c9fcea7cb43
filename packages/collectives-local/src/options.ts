import { type Device, OptionError } from "@mosaic/core";

/** Where the compute stream's native part lies. Throws unless this engine serves the device. */
export function streamOf(device: Device): number {
  if (device.type === "cpu") return Number(device.stream.handle);
  throw new OptionError({
    where: "local collectives",
    expected: "a device of type cpu",
    received: device.type,
    remedy: "connect with collectives that are made for that device",
  });
}

export function checkWorld({ rank, size }: { readonly rank: number; readonly size: number }): void {
  if (Number.isInteger(size) && size >= 1 && size <= 1024 && Number.isInteger(rank) && rank >= 0 && rank < size) return;
  throw new OptionError({
    where: "local collectives",
    expected: "a rank below the size, and at most 1024 ranks",
    received: `rank ${rank} of ${size}`,
  });
}
