/// <reference types="node" />
import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import { defineConfig, type ViteUserConfig } from "vitest/config";

const include = ["test/**/*.test.{ts,mjs}"];

/**
 * What the tests of every package share.
 *
 * Forks, because a native thread that dies must not take the runner along. One at a time on up to three cores, because a
 * test file often starts ranks of its own and `npm test` tests two packages at once. The JSON report is what
 * `scripts/count-tests.mjs` adds up.
 */
const config: ViteUserConfig = defineConfig({
  test: {
    pool: "forks",
    maxWorkers: Math.max(1, Math.min(4, Math.floor(availableParallelism() / 2))),
    include,
    setupFiles: [fileURLToPath(new URL("vitest.setup.ts", import.meta.url))],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    teardownTimeout: 10_000,
    // Only what is slow for a test that starts processes is worth a line.
    slowTestThreshold: 10_000,
    // A package's build is loaded by Node itself, as users load it.
    server: { deps: { external: [/\/packages\/[^/]+\/dist\//] } },
    reporters: ["default", "json"],
    outputFile: { json: "build/test-report.json" },
    // What is tested must not depend on a GPU that happens to be there: tests for GPUs name them.
    env: { MOSAIC_DEVICE: process.env.MOSAIC_DEVICE ?? "cpu" },
  },
});

export default config;

/**
 * All test files of a package in one process: most of a small file's time goes into loading what it imports. The files
 * that `apart` matches have a process each: they measure the memory, the threads or the descriptors of their process.
 */
export function inOneProcess(apart: readonly string[] = []): ViteUserConfig {
  // Projects add to the lists of what they extend.
  const { include: _, ...rest } = config.test!;
  const together = { name: "together", include, exclude: [...apart], isolate: false };
  const alone = { name: "apart", include: [...apart], isolate: true };
  const projects = [together, ...(apart.length > 0 ? [alone] : [])].map((test) => ({ extends: true as const, test }));
  return { test: { ...rest, projects } };
}
