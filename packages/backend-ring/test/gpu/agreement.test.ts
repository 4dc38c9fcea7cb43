import { fileURLToPath } from "node:url";
import { world } from "@mosaic/collectives-nccl";
import { agreementSuite } from "@mosaic/conformance";
import { cuda } from "@mosaic/kernels-cuda";
import { ring } from "../../src/index.ts";
import { register } from "../../../../vitest.world.ts";

// NCCL does not allow several ranks of one process on one GPU, so this test always uses the emulated driver and NCCL.
const resolveBuildPath = (path: string) => fileURLToPath(new URL(`../../../${path}`, import.meta.url));
process.env.MOSAIC_CUDA_LIBRARY = resolveBuildPath("kernels-cuda/build-emulated/libcuda_emulated.so");
process.env.MOSAIC_NCCL_LIBRARY = resolveBuildPath("collectives-nccl/build-emulated/libnccl_emulated.so");

register(
  agreementSuite({
    makeWorld: (size, { wrapDevice, ...options }) =>
      world(size, { ...options, device: () => wrapDevice(cuda({ index: 0 })) }),
    backend: (axis) => ring({ axis }),
  }),
);
