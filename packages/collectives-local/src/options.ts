import { type Device, OptionError } from "@mosaic/core";

const defaultTimeout = 300;

/** Seconds that a collective may take: the option, else MOSAIC_COLLECTIVE_TIMEOUT, else 300. */
export function timeoutOf(given: number | undefined): number {
  const text = process.env.MOSAIC_COLLECTIVE_TIMEOUT;
  const timeout = given ?? (text ? Number(text) : defaultTimeout);
  // Nanoseconds must fit in 63 bits.
  if (timeout > 0 && timeout <= 1e9) return timeout;
  throw new OptionError({
    where: given === undefined ? "environment variable MOSAIC_COLLECTIVE_TIMEOUT" : "timeout",
    expected: "seconds, more than 0 and at most 1e9",
    received: String(given ?? text),
  });
}

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
