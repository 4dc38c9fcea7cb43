/// <reference types="node" />
import { availableParallelism } from "node:os";
import { defineConfig, type ViteUserConfig } from "vitest/config";

/**
 * What the tests of every package share.
 *
 * Forks, because a native thread that dies must not take the runner along. Half the cores, because a test file
 * often starts ranks of its own. The JSON report is what `scripts/count-tests.mjs` adds up.
 */
const config: ViteUserConfig = defineConfig({
  test: {
    pool: "forks",
    maxWorkers: Math.max(1, Math.min(4, Math.floor(availableParallelism() / 2))),
    include: ["test/**/*.test.{ts,mjs}"],
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
