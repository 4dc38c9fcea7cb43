// Tensors, autograd, errors and the contracts, whole: for authors of devices, collectives, backends and operations.
export * from "@mosaic/core";
