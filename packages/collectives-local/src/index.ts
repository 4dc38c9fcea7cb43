export { local, type LocalOptions } from "./local.ts";
export { world, type WorldOptions } from "./world.ts";
