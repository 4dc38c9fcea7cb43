// What the umbrella package gives a program, from the packages that this one may use: everything, and an init with defaults.
import { local as localCollectives } from "@mosaic/collectives-local";
import { type Context, init as initCore, type InitOptions } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";

export * from "@mosaic/backend-mesh2d";
export * from "@mosaic/backend-ring";
export * from "@mosaic/backend-ulysses";
export * from "@mosaic/core";

export function init(options: Omit<InitOptions, "device" | "collectives">): Promise<Context> {
  return initCore({ ...options, device: cpu({ threads: 1 }), collectives: localCollectives() });
}
