export { ReferenceDevice } from "./device.ts";
export { philox } from "./random.ts";
export { referenceWorld } from "./world.ts";
