// Checks native code under sanitizers. The addons run through their own suites with AddressSanitizer and
// UndefinedBehaviorSanitizer. Pool, stream, allocator, engine and control-plane client run as separate programs with
// ThreadSanitizer, which does not support Node.js. Not part of CI. CONTRIBUTING.md states how long each part takes.
//
//   npm run check:native [-- part…]      parts: build, kernels-cpu, collectives-local, runtime, thread
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { requireParts, run, runParts, createExcludeArguments } from "./check-parts.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const selectedParts = process.argv.slice(2);
const ADDRESS_SANITIZERS = "address,undefined",
  THREAD_SANITIZER = "thread";

/** Tests that cannot pass under the sanitizer, by the beginning of their names, and the reason. */
const UNSANITIZED_TESTS = {
  "kernels-cpu": {
    "a device whose threads cannot all be created": "AddressSanitizer reserves more addresses than the limit allows",
    "a bandwidth of more bytes than there are": "AddressSanitizer ends the process instead of throwing std::bad_alloc",
  },
  "collectives-local": {},
  runtime: {
    "32 agents of 8 ranks": "the test limits the memory of a rank, which sanitizers increase",
  },
};

const packagePath = (name) => join(root, "packages", name);

function build(name, sanitizers, cmakeTarget) {
  const target = cmakeTarget ? ["--cmake-target", cmakeTarget] : [];
  const args = [join(root, "scripts/native.mjs"), "--sanitize", sanitizers, ...target];
  return run(process.execPath, args, { cwd: packagePath(name) });
}

function findLibrary(name) {
  const path = spawnSync(process.env.CXX ?? "c++", [`-print-file-name=${name}`], { encoding: "utf8" }).stdout.trim();
  if (existsSync(path)) return path;
  throw new Error(`check:native: expected the compiler's ${name}, found none; use GCC`);
}

/**
 * Returns the environment in which every process of a test loads addons from the sanitized build instead of
 * `prebuilds`. Leak detection is off, because Node.js frees little of its memory at exit. The quarantine is small,
 * because some tests measure memory.
 */
function createSanitizerEnvironment() {
  const preloadPath = join(root, "build/sanitized.mjs");
  mkdirSync(join(root, "build"), { recursive: true });
  writeFileSync(
    preloadPath,
    `const open = process.dlopen;
process.dlopen = (module, path, ...flags) =>
  open.call(process, module, path.replace("/prebuilds/", "/build-cmake/${ADDRESS_SANITIZERS}/prebuilds/"), ...flags);
`,
  );
  return {
    ...process.env,
    NODE_OPTIONS: `${process.env.NODE_OPTIONS ?? ""} --import=${pathToFileURL(preloadPath).href}`,
    LD_PRELOAD: `${findLibrary("libasan.so")} ${findLibrary("libubsan.so")}`,
    ASAN_OPTIONS: "detect_leaks=0:quarantine_size_mb=8",
    UBSAN_OPTIONS: "print_stacktrace=1",
  };
}

function runSuite(name) {
  const addonDirectory = join("build-cmake", ADDRESS_SANITIZERS, "prebuilds");
  if (!existsSync(join(packagePath(name), addonDirectory))) {
    console.error(
      `check:native: ${name}: expected its sanitized addon in packages/${name}/${addonDirectory}, found none; run the part "build" before`,
    );
    return false;
  }
  const vitest = [join(root, "node_modules/vitest/vitest.mjs"), "run", "--config", join(root, "vitest.config.ts")];
  const slowTestOptions = ["--testTimeout=600000", "--hookTimeout=600000", "--reporter=default"];
  return run(
    process.execPath,
    [...vitest, ...slowTestOptions, ...createExcludeArguments(name, UNSANITIZED_TESTS[name])],
    {
      cwd: packagePath(name),
      env: createSanitizerEnvironment(),
    },
  );
}

/** Checks the client of the control plane, in programs that its tests compile. */
function checkControlPlane(sanitizers) {
  const vitest = [join(root, "node_modules/vitest/vitest.mjs"), "run", "--config", join(root, "vitest.config.ts")];
  const args = [
    ...vitest,
    "--testTimeout=600000",
    "--reporter=default",
    ...createExcludeArguments("runtime", UNSANITIZED_TESTS.runtime),
    "test/control",
  ];
  return run(process.execPath, args, {
    cwd: packagePath("runtime"),
    env: { ...process.env, MOSAIC_SANITIZE: sanitizers },
  });
}

function runStressTest(name, program, ...args) {
  if (!build(name, THREAD_SANITIZER, program.split("/").at(-1))) return false;
  return run(join(packagePath(name), "build-cmake", THREAD_SANITIZER, program), args);
}

const PARTS = {
  build: () => ["runtime", "kernels-cpu", "collectives-local"].every((name) => build(name, ADDRESS_SANITIZERS)),
  "kernels-cpu": () => runSuite("kernels-cpu"),
  "collectives-local": () => runSuite("collectives-local"),
  runtime: () => checkControlPlane(ADDRESS_SANITIZERS),
  thread: () =>
    [
      () => runStressTest("kernels-cpu", "kernels-stress", "10"),
      () => runStressTest("kernels-cpu", "native/attention/attention_check", "1", "40"),
      () => runStressTest("collectives-local", "collectives-stress", "20"),
      () => runStressTest("collectives-local", "collectives-test"),
      () => checkControlPlane(THREAD_SANITIZER),
    ].reduce((ok, check) => check() && ok, true),
};

requireParts("check:native", PARTS, selectedParts);
runParts("check:native", PARTS, selectedParts);
