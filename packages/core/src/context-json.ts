import { checkContext } from "./arguments.ts";
import type { Context } from "./context.ts";
import { formatDevice } from "./device.ts";

/**
 * Returns what `JSON.stringify` writes for a context: rank, size, mesh, coordinate, device, seed and names of backends.
 * For the `toJSON` of classes that implement `Context`.
 *
 * @example
 * ```ts
 * import { contextToJson, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * JSON.stringify(contextToJson(ctx)).slice(0, 36); // => '{"rank":0,"size":1,"mesh":{"sp":1},"'
 * ```
 */
export function contextToJson(ctx: Context): object {
  checkContext("contextToJson", ctx);
  const { rank, size, mesh, device, seed, backends } = ctx;
  const { shape, coordinate } = mesh;
  return { rank, size, mesh: shape, coordinate, device: formatDevice(device), seed, backends };
}
