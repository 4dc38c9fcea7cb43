/// <reference types="node" />
import { spawnSync } from "node:child_process";
import { availableParallelism } from "node:os";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig, type ViteUserConfig } from "vitest/config";

const include = ["test/**/*.test.{ts,mjs}"];

const workers = Math.max(1, Math.min(4, Math.floor(availableParallelism() / 2)));

/**
 * What the tests of every package share; a package's tests are run in its directory, by `npm test`.
 *
 * Forks, because a native thread that dies must not take the runner along. One at a time on up to three cores, because a
 * test file often starts ranks of its own and `npm test` tests two packages at once. The JSON report is what
 * `scripts/count-tests.mjs` adds up.
 */
const shared: NonNullable<ViteUserConfig["test"]> = {
  pool: "forks",
  maxWorkers: workers,
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
  outputFile: { json: `build/test-report${process.env.MOSAIC_TEST_HOSTS === "1" ? "-hosts" : ""}.json` },
  // What is tested must not depend on a GPU that happens to be there: tests for GPUs name them.
  env: { MOSAIC_DEVICE: process.env.MOSAIC_DEVICE ?? "cpu" },
};

/**
 * Packages whose test files share one process: most of a small file's time goes into loading what it imports. The files
 * named here have a process each: they measure the memory, the threads or the descriptors of their process.
 */
const inOneProcess: Readonly<Record<string, readonly string[]>> = {
  "backend-flex": [],
  "backend-mesh2d": [],
  "backend-ring": ["leak"],
  "backend-ulysses": [],
  benchmarks: [],
  conformance: [],
  core: ["lost-tensors"],
  genome: [],
  "kernels-cpu": ["lifetime", "matmul"],
  llm: [],
  "meta-attention": [],
  models: ["peak-memory"],
  nn: [],
  planner: [],
  program: [],
  quickstart: [],
  strategies: [],
  tabular: [],
};

/** Packages whose tests wait for processes that start and end, and take half a core: two files at once, at least. */
const mostlyWaiting: ReadonlySet<string> = new Set(["launcher"]);

/** Tests of the stand-ins, which a real GPU cannot run: they ask for failures, or compile. The README lists them, too. */
const ofStandIns: Readonly<Record<string, readonly string[]>> = {
  "kernels-cuda": ["errors", "faults", "lifetime", "library-search-paths", "refusal", "system"],
};

/** Tests between hosts, which are network namespaces that only root can make: `npm run test:hosts` in the package. */
const betweenHosts: Readonly<Record<string, readonly string[]>> = {
  attention: ["doctor-hosts", "hosts"],
  "collectives-nccl": ["hosts"],
  "collectives-ucx": ["hosts"],
  nn: ["hosts"],
};

/** Tests that run on the real UCX: without it they are left out, and the run prints so. */
const overUcx: Readonly<Record<string, readonly string[]>> = { "collectives-ucx": ["mixed", "world"] };

/** Those that take minutes, and fail without it: `npm run test:ucx` in the package. */
const longOverUcx: Readonly<Record<string, readonly string[]>> = { "collectives-ucx": ["conformance", "processes"] };

const files = (names: readonly string[] = []) => names.map((name) => `test/${name}.test.ts`);

/** Files of a package's tests that this machine, or this run, has nothing for. */
function excludedFrom(directory: string): string[] {
  if (process.env.MOSAIC_TEST_HOSTS === "1") return [];
  const standIns = process.env.MOSAIC_TEST_GPU === "1" ? files(ofStandIns[directory]) : [];
  const left = [...standIns, ...files(betweenHosts[directory])];
  if (process.env.MOSAIC_TEST_UCX === "1") return left;
  return [...left, ...files(longOverUcx[directory]), ...(isUcxMissing(directory) ? files(overUcx[directory]) : [])];
}

/** Whether there is no UCX, as the package's own build finds it; any other fault of loading fails the tests. */
function isUcxMissing(directory: string): boolean {
  if (!(directory in overUcx)) return false;
  const script = 'const { ucxSystem } = await import("./dist/index.js"); ucxSystem()';
  const { stderr } = spawnSync(process.execPath, ["--input-type=module", "--eval", script], { encoding: "utf8" });
  const [reason] = /ucx: no usable UCX library: .*/.exec(stderr) ?? [];
  if (reason === undefined) return false;
  console.warn(`${directory}: NOT RUN: test/{${overUcx[directory]!.join()}}.test.ts: ${reason}`);
  return true;
}

function configOf(directory: string): typeof shared {
  const exclude = excludedFrom(directory);
  if (mostlyWaiting.has(directory)) return { ...shared, exclude, maxWorkers: Math.max(2, workers) };
  if (!(directory in inOneProcess)) return { ...shared, exclude };
  // Projects add to the lists of what they extend.
  const { include: _, ...rest } = shared;
  const apart = files(inOneProcess[directory]);
  const together = { name: "together", include, exclude: [...exclude, ...apart], isolate: false };
  const alone = { name: "apart", include: apart, isolate: true };
  const projects = [together, ...(apart.length > 0 ? [alone] : [])].map((test) => ({ extends: true as const, test }));
  return { ...rest, projects };
}

const config: ViteUserConfig = defineConfig({ test: configOf(basename(process.cwd())) });

export default config;
