// Builds the native code of the package in the current directory: CMakeLists.txt → prebuilds/<platform>-<arch>/*.node.
// Prints nothing unless something is wrong. `--verbose` shows the compiler's output.
//
//   --target linux-arm64              cross-compiles, with scripts/toolchains/linux-arm64.cmake
//   --sanitize address,undefined      or thread: addons go to build-cmake/address,undefined/prebuilds
//   --cmake-target <name>             builds that target instead of the addons
import { spawnSync } from "node:child_process";
import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const stringOption = { type: "string" };
const options = {
  verbose: { type: "boolean", default: false },
  target: stringOption,
  sanitize: stringOption,
  "cmake-target": stringOption,
};
const { verbose, target, sanitize, "cmake-target": cmakeTarget } = parseArgs({ options }).values;
const toolchain = target && fileURLToPath(new URL(`toolchains/${target}.cmake`, import.meta.url));
const compiler = target ? "aarch64-linux-gnu-g++" : (process.env.CXX ?? "c++");
// Each variant has its own build directory.
const directory = ["build-cmake", target, sanitize].filter(Boolean).join("/");

function run(command, args) {
  const { status, stdout, stderr } = spawnSync(command, args, { encoding: "utf8", maxBuffer: 1 << 28 });
  if (verbose || status !== 0) process.stdout.write(`${stdout ?? ""}${stderr ?? ""}`);
  // A warning is not an error, but it is printed.
  else if (/\bwarning:/.test(stderr)) process.stdout.write(stderr);
  // A build prints a note for each part that it omits.
  else for (const [note] of stderr.matchAll(/^note: .*$/gm)) console.log(note);
  if (status !== 0) process.exit(status || 1);
}

const missingTools = [
  [compiler, `a C++20 compiler (looked for \`${compiler}\`; set CXX to use a different compiler)`],
  ["cmake", "CMake 3.22 or newer"],
].filter(([command]) => spawnSync(command, ["--version"]).status !== 0);

if (missingTools.length > 0) {
  console.error(`Cannot build the native addon of ${process.env.npm_package_name ?? process.cwd()}: not found:
${missingTools.map(([, hint]) => `  - ${hint}`).join("\n")}
Possible solutions:
  Debian, Ubuntu:  apt-get install g++ cmake
  Fedora, RHEL:    dnf install gcc-c++ cmake
  Alpine:          apk add g++ cmake make
  macOS:           xcode-select --install && brew install cmake`);
  process.exit(1);
}

const configureArgs = ["-S", ".", "-B", directory, "-DCMAKE_BUILD_TYPE=Release"];
if (toolchain) configureArgs.push(`-DCMAKE_TOOLCHAIN_FILE=${toolchain}`);
if (sanitize) configureArgs.push(`-DMOSAIC_SANITIZE=${sanitize}`);
run("cmake", configureArgs);
const buildArgs = ["--build", directory, `-j${availableParallelism()}`];
run("cmake", cmakeTarget ? [...buildArgs, "--target", cmakeTarget] : buildArgs);
