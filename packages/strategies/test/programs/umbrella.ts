// The exports of the umbrella package that printed code uses, from packages that this one may import.
import { local as localCollectives } from "@mosaic/collectives-local";
import { type Context, init as initCore, type InitOptions } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";

export { dispatch, flex } from "@mosaic/backend-flex";
export { mesh2d } from "@mosaic/backend-mesh2d";
export { ring } from "@mosaic/backend-ring";
export { ulysses } from "@mosaic/backend-ulysses";
export {
  contiguous,
  CrossAxisAttention,
  layoutOf,
  local,
  masks,
  MultiAxisAttention,
  randn,
} from "@mosaic/core";

export function init(options: Omit<InitOptions, "device" | "collectives">): Promise<Context> {
  return initCore({ ...options, device: cpu({ threads: 1 }), collectives: localCollectives() });
}
