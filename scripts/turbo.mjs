// Runs turbo with environment variables that the user should not have to set.
//
//   node scripts/turbo.mjs [--quiet] <task>… [turbo options]
//
// --quiet   prints only failing tasks, to stderr, so that stdout has only the output of the program started next.
import { spawn, spawnSync } from "node:child_process";
import { createRequire } from "node:module";

const args = process.argv.slice(2);
const isQuiet = args[0] === "--quiet";
if (isQuiet) args.shift();

/**
 * Returns the versions of the native toolchain. Turbo hashes sources only, but a new compiler must rebuild the addons
 * too.
 */
function describeNativeToolchain() {
  const readVersion = (command, ...options) => spawnSync(command, options, { encoding: "utf8" }).stdout?.trim() ?? "";
  const compilerVersions = [process.env.CXX ?? "c++", "cmake", "nvcc"].map((command) =>
    readVersion(command, "--version"),
  );
  return [...compilerVersions, process.platform, process.arch].join("; ");
}

const defaults = ["--ui=stream", `--output-logs=${isQuiet ? "errors-only" : "new-only"}`];
if (!args.some((arg) => arg.startsWith("--concurrency"))) defaults.push("--concurrency=2");

const turbo = createRequire(import.meta.url).resolve("turbo/bin/turbo");
const child = spawn(process.execPath, [turbo, "run", ...defaults, ...args], {
  stdio: ["inherit", isQuiet ? process.stderr : "inherit", "inherit"],
  env: {
    ...process.env,
    NATIVE_TOOLCHAIN: process.env.NATIVE_TOOLCHAIN ?? describeNativeToolchain(),
    DO_NOT_TRACK: "1",
    TURBO_NO_UPDATE_NOTIFIER: "1",
  },
});
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => child.kill(signal));
child.on("exit", (code, signal) => process.exit(code ?? (signal ? 1 : 0)));
