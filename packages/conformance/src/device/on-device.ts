import type { Device } from "@mosaic/core";

/** Makes a fresh device. */
export type MakeDevice = () => Device;

/** Runs `body` on a fresh device and closes it. */
export async function onDevice(make: MakeDevice, body: (device: Device) => Promise<void>): Promise<void> {
  using device = make();
  await body(device);
}
