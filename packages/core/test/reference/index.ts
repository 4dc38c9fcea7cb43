export { ReferenceDevice } from "./device.ts";
export { philox } from "./random.ts";
export { referenceWorld } from "./world.ts";
export { allGatherBackend } from "./gather-backend.ts";
export { checkGradients, values } from "./gradients.ts";
export { createLeaf, readGrad } from "./leaves.ts";
