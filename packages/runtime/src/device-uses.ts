import type { Device } from "@mosaic/core";

/** The number of ranks that use a device, and the call that closes it once none does. */
interface DeviceUse {
  numRanks: number;
  closeDevice: (() => void) | undefined;
}

/** By the address of the device's stream. */
const uses = new Map<bigint, DeviceUse>();

/**
 * Keeps the native device of `device` open until the returned function is called, which is called once. A rank calls
 * native functions of a device with a port until the rank has closed, even if the program disposes the device. An open
 * rank refers to its device, so that it is not garbage-collected either.
 */
export function retainDevice(device: Device): () => void {
  const { handle, port } = device.stream;
  if (port === undefined) return () => {};
  const use: DeviceUse = uses.get(handle) ?? { numRanks: 0, closeDevice: undefined };
  use.numRanks++;
  uses.set(handle, use);
  return () => {
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
