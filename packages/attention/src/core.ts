// All of core: tensors, autograd, errors and contracts, for authors of devices, collectives, backends and operations.
export * from "@mosaic/core";
