/// <reference types="node" />
import { spawnSync } from "node:child_process";
import { availableParallelism } from "node:os";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig, type ViteUserConfig } from "vitest/config";

const include = ["test/**/*.test.{ts,mjs}"];

const workers = Math.max(1, Math.min(4, Math.floor(availableParallelism() / 2)));

/**
 * Configuration of the tests of all packages. The tests of a package run in its directory, by `npm test`.
 *
 * The pool is forks, because a native thread that dies must not terminate the runner. There is one worker on up to
 * three cores, because a test file often starts ranks of its own and `npm test` tests two packages at once.
 * `scripts/count-tests.mjs` adds up the JSON reports.
 */
const shared: NonNullable<ViteUserConfig["test"]> = {
  pool: "forks",
  maxWorkers: workers,
  include,
  setupFiles: [fileURLToPath(new URL("vitest.setup.ts", import.meta.url))],
  testTimeout: 60_000,
  hookTimeout: 60_000,
  teardownTimeout: 10_000,
  // Reports only tests that are slow even for tests that start processes.
  slowTestThreshold: 10_000,
  // Node.js loads the build of a package directly, as for users.
  server: { deps: { external: [/\/packages\/[^/]+\/dist\//] } },
  reporters: ["default", "json"],
  outputFile: { json: `build/test-report${process.env.MOSAIC_TEST_HOSTS === "1" ? "-hosts" : ""}.json` },
  // Results must not depend on whether a GPU is present. Tests for GPUs select them explicitly.
  env: { MOSAIC_DEVICE: process.env.MOSAIC_DEVICE ?? "cpu" },
};

/**
 * Packages whose test files share one process, because a small file spends most of its time on loading its imports. The
 * files listed here have a process each, because they measure the memory, the threads or the descriptors of their
 * process.
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

/** Packages whose tests wait for processes to start and exit, and use half a core. At least two files run at once. */
const mostlyWaiting: ReadonlySet<string> = new Set(["launcher"]);

/**
 * Tests of the emulated libraries, which a real GPU cannot run because they inject failures or compile. The README
 * lists them too.
 */
const ofStandIns: Readonly<Record<string, readonly string[]>> = {
  "kernels-cuda": ["errors", "faults", "ladder", "lifetime", "library-search-paths", "refusal", "system"],
};

/**
 * Tests between hosts. Hosts are network namespaces, which only root can create: `npm run test:hosts` in the package.
 */
const betweenHosts: Readonly<Record<string, readonly string[]>> = {
  attention: ["doctor-hosts", "hosts"],
  "collectives-nccl": ["hosts"],
  "collectives-ucx": ["hosts"],
  nn: ["hosts"],
};

/** Tests that run on the real UCX. Without it they are skipped, and the run prints the reason. */
const overUcx: Readonly<Record<string, readonly string[]>> = { "collectives-ucx": ["mixed", "world"] };

/** Tests on UCX that take minutes and fail without it: `npm run test:ucx` in the package. */
const longOverUcx: Readonly<Record<string, readonly string[]>> = { "collectives-ucx": ["conformance", "processes"] };

const files = (names: readonly string[] = []) => names.map((name) => `test/${name}.test.ts`);

/** Returns the test files of a package that are excluded on this machine or in this run. */
function excludedFrom(directory: string): string[] {
  if (process.env.MOSAIC_TEST_HOSTS === "1") return [];
  const standIns = process.env.MOSAIC_TEST_GPU === "1" ? files(ofStandIns[directory]) : [];
  const left = [...standIns, ...files(betweenHosts[directory])];
  if (process.env.MOSAIC_TEST_UCX === "1") return left;
  return [...left, ...files(longOverUcx[directory]), ...(isUcxMissing(directory) ? files(overUcx[directory]) : [])];
}

/** Whether the package's own build finds no UCX. Any other failure to load it fails the tests. */
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
  // Projects append to the lists of the configuration that they extend.
  const { include: _, ...rest } = shared;
  const apart = files(inOneProcess[directory]);
  const together = { name: "together", include, exclude: [...exclude, ...apart], isolate: false };
  const alone = { name: "apart", include: apart, isolate: true };
  const projects = [together, ...(apart.length > 0 ? [alone] : [])].map((test) => ({ extends: true as const, test }));
  return { ...rest, projects };
}

const config: ViteUserConfig = defineConfig({ test: configOf(basename(process.cwd())) });

export default config;
