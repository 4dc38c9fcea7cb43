// Builds the native half of the package in the current folder: CMakeLists.txt → prebuilds/<platform>-<arch>/*.node.
// Reports nothing unless something is wrong; `--verbose` shows the compiler's output.
import { spawnSync } from "node:child_process";
import { availableParallelism } from "node:os";

const verbose = process.argv.includes("--verbose");
const compiler = process.env.CXX ?? "c++";

function run(command, args) {
  const { status, stdout, stderr } = spawnSync(command, args, { encoding: "utf8", maxBuffer: 1 << 28 });
  if (verbose || status !== 0) process.stdout.write(`${stdout ?? ""}${stderr ?? ""}`);
  // A warning is not an error, but it is printed.
  else if (/\bwarning:/.test(stderr)) process.stdout.write(stderr);
  // What a build leaves out, it reports in a line of its own.
  else for (const [note] of stderr.matchAll(/^note: .*$/gm)) console.log(note);
  if (status !== 0) process.exit(status || 1);
}

const missing = [
  [compiler, `a C++20 compiler (looked for \`${compiler}\`; set CXX to name another)`],
  ["cmake", "CMake 3.22 or newer"],
].filter(([command]) => spawnSync(command, ["--version"]).status !== 0);

if (missing.length > 0) {
  console.error(`Cannot build the native addon of ${process.env.npm_package_name ?? process.cwd()}: not found:
${missing.map(([, what]) => `  - ${what}`).join("\n")}
Possible solutions:
  Debian, Ubuntu:  apt-get install g++ cmake
  Fedora, RHEL:    dnf install gcc-c++ cmake
  Alpine:          apk add g++ cmake make
  macOS:           xcode-select --install && brew install cmake`);
  process.exit(1);
}

run("cmake", ["-S", ".", "-B", "build-cmake", "-DCMAKE_BUILD_TYPE=Release"]);
run("cmake", ["--build", "build-cmake", `-j${availableParallelism()}`]);
