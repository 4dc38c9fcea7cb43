// Builds the published addons of packages for every platform, into build/release/prebuilds/<package>/<platform>. They
// are linked with libraries of Debian 11, and must load on hosts with glibc 2.28 or newer (decision 0045), which is
// checked in the files. Requires Debian or Ubuntu, with g++, g++-aarch64-linux-gnu, CMake, and nvcc for GPU kernels.
//
//   node scripts/release/prebuilds.mjs [linux-x64] [linux-arm64] [kernels-cpu] …    default: all platforms and packages
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { listPackages } from "../workspace.mjs";
import { findPortabilityFaults } from "./elf.mjs";
import { PLATFORMS, createSysroot } from "./sysroot.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const outputDirectory = join(root, "build/release");
const toolchain = join(root, "scripts/toolchains/portable.cmake");

/** Returns the packages with an addon: `{ directory, dir, target }`, where the target is also the name of the addon. */
export function listAddons(directory) {
  return listPackages(directory)
    .filter(({ dir, isProgram }) => !isProgram && existsSync(join(dir, "CMakeLists.txt")))
    .map((one) => ({ directory: one.directory, dir: one.dir, target: `mosaic_${one.directory.replaceAll("-", "_")}` }));
}

/** Returns the path of the built addon of a package for a platform. */
export const prebuildPath = ({ directory, target }, platform) =>
  join(outputDirectory, "prebuilds", directory, platform, `${target}.node`);

/** Builds the addons of all packages, or of those named, for the platforms. Returns a sentence for each fault. */
export function buildAll(platforms, names = []) {
  const faults = [];
  const addons = listAddons(root).filter(({ directory }) => names.length === 0 || names.includes(directory));
  for (const addon of addons) {
    const fatbin = addon.directory === "kernels-cuda" ? compileKernels(addon) : "";
    for (const platform of platforms) {
      const startTime = performance.now();
      build(addon, platform, createSysroot(platform), fatbin);
      const file = prebuildPath(addon, platform);
      faults.push(
        ...findPortabilityFaults(file, platform).map((fault) => `${addon.target}.node for ${platform}: ${fault}`),
      );
      console.log(`${platform}/${addon.target}.node in ${((performance.now() - startTime) / 1000).toFixed(0)} s`);
    }
  }
  return faults;
}

/** Compiles the GPU machine code. It is compiled once, because it does not depend on the host. */
function compileKernels(addon) {
  const buildDirectory = join(outputDirectory, "cmake/kernels");
  run("cmake", ["-S", addon.dir, "-B", buildDirectory, "-DCMAKE_BUILD_TYPE=Release"]);
  run("cmake", ["--build", buildDirectory, "--target", `${addon.target}_kernels`]);
  const fatbin = join(buildDirectory, "kernels.fatbin");
  if (!existsSync(fatbin)) throw new Error(`prebuilds: expected GPU kernels at ${fatbin}, received none; install nvcc`);
  return fatbin;
}

function build({ directory, dir, target }, platform, sysroot, fatbin) {
  const { triple, processor } = PLATFORMS[platform];
  const env = {
    ...process.env,
    MOSAIC_TRIPLE: triple,
    MOSAIC_PROCESSOR: processor,
    MOSAIC_PLATFORM: platform,
    MOSAIC_SYSROOT: sysroot,
  };
  const buildDirectory = join(outputDirectory, "cmake", platform, directory);
  mkdirSync(buildDirectory, { recursive: true });
  const definitions = {
    CMAKE_BUILD_TYPE: "Release",
    CMAKE_TOOLCHAIN_FILE: toolchain,
    MOSAIC_PREBUILDS: join(outputDirectory, "prebuilds", directory),
    MOSAIC_KERNEL_FATBIN: fatbin,
  };
  const cmakeDefinitions = Object.entries(definitions).map(([name, value]) => `-D${name}=${value}`);
  run("cmake", ["-S", dir, "-B", buildDirectory, "--no-warn-unused-cli", ...cmakeDefinitions], env);
  run("cmake", ["--build", buildDirectory, `-j${availableParallelism()}`, "--target", target], env);
}

function run(command, args, env = process.env) {
  const { status, stdout, stderr, error } = spawnSync(command, args, { env, encoding: "utf8", maxBuffer: 1 << 28 });
  if (status === 0) return;
  throw new Error(`${command} ${args.join(" ")} failed: ${error?.message ?? ""}\n${stdout}${stderr}`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const args = process.argv.slice(2);
  const platforms = args.filter((arg) => arg in PLATFORMS);
  const names = args.filter((arg) => !(arg in PLATFORMS));
  const addonNames = listAddons(root).map(({ directory }) => directory);
  const unknownNames = names.filter((name) => !addonNames.includes(name));
  if (unknownNames.length > 0)
    throw new Error(
      `prebuilds: expected platforms (${Object.keys(PLATFORMS).join(", ")}) or packages (${addonNames.join(", ")}), received ${unknownNames.join(", ")}`,
    );
  const faults = buildAll(platforms.length > 0 ? platforms : Object.keys(PLATFORMS), names);
  for (const fault of faults) console.error(fault);
  if (faults.length > 0) process.exit(1);
}
