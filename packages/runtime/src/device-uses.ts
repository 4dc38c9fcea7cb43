import type { Device } from "@mosaic/core";

/** The ranks that use a device, and the call that closes it once none does. */
interface DeviceUse {
  /** Retained, because closing a device that was garbage-collected would not wait for its ranks. */
  readonly device: Device;
  numRanks: number;
  closeDevice: (() => void) | undefined;
}

/** By the address of the device's stream. */
const uses = new Map<bigint, DeviceUse>();

/**
 * Keeps the native device of `device` open until the returned function is called. A rank calls native functions of a
 * device with a port until the rank has closed, even if the program disposes the device or no longer refers to it.
 */
export function retainDevice(device: Device): () => void {
  const { handle, port } = device.stream;
  if (port === undefined) return () => {};
  const use: DeviceUse = uses.get(handle) ?? { device, numRanks: 0, closeDevice: undefined };
  use.numRanks++;
  uses.set(handle, use);
  let isReleased = false;
  return () => {
    if (isReleased) return;
    isReleased = true;
    use.numRanks--;
    if (use.numRanks > 0) return;
    uses.delete(handle);
    use.closeDevice?.();
  };
}

/** Closes the device with this stream by `closeDevice`: now, or once no rank uses it. */
export function closeWhenUnused(streamAddress: bigint, closeDevice: () => void): void {
  const use = uses.get(streamAddress);
  if (use === undefined) closeDevice();
  else use.closeDevice = closeDevice;
}
