import { collectivesSuite } from "@mosaic/conformance";
import { cuda } from "@mosaic/kernels-cuda";
import { test } from "vitest";
import { world } from "../src/index.ts";
import { runsOnGpu } from "./emulated.ts";

// Real NCCL accepts only one rank of a process per GPU. processes.test.ts runs the suite with more ranks.
const suite = collectivesSuite(
  (size, { wrapDevice, ...options }) => world(size, { ...options, device: () => wrapDevice(cuda()) }),
  {
    sizes: runsOnGpu ? [1] : [1, 2, 3, 4, 7],
  },
);

test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());
