import { collectivesSuite } from "@mosaic/conformance";
import { cpu } from "@mosaic/kernels-cpu";
import { test } from "vitest";
import { world } from "../src/index.ts";

const suite = collectivesSuite((size, { wrapDevice, ...options }) =>
  world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) }),
);

test.each(suite.map(({ name, run }) => [name, run] as const))("%s", async (_, run) => {
  await run();
});
