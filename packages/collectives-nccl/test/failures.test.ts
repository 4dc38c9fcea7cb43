import { failureSuite } from "@mosaic/conformance";
import { cuda } from "@mosaic/kernels-cuda";
import { test } from "vitest";
import { world } from "../src/index.ts";
import { emulate } from "./emulated.ts";

// NCCL takes one rank of a process on one GPU, and there may be but one.
emulate();

// What NCCL can carry out all the same, it does: as many bytes, another dtype.
const suite = failureSuite(
  (size, { dress, ...options }) => world(size, { ...options, device: () => dress(cuda({ index: 0 })) }),
  { lateNews: true },
);

test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());
