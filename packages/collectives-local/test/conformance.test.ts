import { collectivesSuite } from "@mosaic/conformance";
import { cpu } from "@mosaic/kernels-cpu";
import { test } from "vitest";
import { world } from "../src/index.ts";

const suite = collectivesSuite((size, { mesh, seed } = {}) =>
  world(size, { device: () => cpu({ threads: 1 }), ...(mesh && { mesh }), ...(seed !== undefined && { seed }) }),
);

test.each(suite.map(({ name, run }) => [name, run] as const))("%s", async (_, run) => {
  await run();
});
