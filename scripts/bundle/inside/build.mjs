// Recompiles the addons, for a host on which those of the bundle do not load: `./mosaic build [package…]`. Requires a
// C++20 compiler (CXX, else c++) and ar. CMake and nvcc are not needed, because the bundle contains the kernels'
// machine code.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { listPackages } from "../../workspace.mjs";

const root = fileURLToPath(new URL("../../..", import.meta.url)).replace(/\/$/, "");
const cxx = process.env.CXX ?? "c++";

if (spawnSync(cxx, ["--version"]).status !== 0) {
  console.error(
    `no C++ compiler found: tried \`${cxx}\`; set CXX to a C++ compiler, or load an environment module that provides one`,
  );
  process.exit(1);
}
const names = process.argv.slice(2);
const nativePackages = listPackages(root).filter(({ dir }) => existsSync(join(dir, "native-recipe.json")));
for (const { directory, dir } of nativePackages.filter(
  (addon) => names.length === 0 || names.includes(addon.directory),
)) {
  const start = performance.now();
  await build(JSON.parse(readFileSync(join(dir, "native-recipe.json"), "utf8")));
  console.log(`${directory}: built in ${((performance.now() - start) / 1000).toFixed(0)} s`);
}

/** Compiles sources in parallel. A link step waits for all earlier steps. */
async function build({ images, steps }) {
  for (const image of images) extract(image);
  const runningJobs = new Set();
  for (const { directory, command } of steps) {
    const step = { directory: fillPlaceholders(directory), command: fillPlaceholders(command) };
    const isCompileStep = command.includes(" -c ");
    while (runningJobs.size >= (isCompileStep ? availableParallelism() : 1)) await Promise.race(runningJobs);
    const job = runCommand(step).finally(() => runningJobs.delete(job));
    runningJobs.add(job);
    if (!isCompileStep) await job;
  }
  await Promise.all(runningJobs);
}

/**
 * Extracts the kernels' machine code from the addon of the bundle. Only done once, because its offset in a rebuilt
 * addon differs.
 */
function extract({ image, addon, offset, length }) {
  const file = fillPlaceholders(image);
  if (existsSync(file)) return;
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, readFileSync(fillPlaceholders(addon)).subarray(offset, offset + length));
}

function fillPlaceholders(text) {
  return text.replaceAll("@root@", root).replaceAll("@cxx@", cxx);
}

function runCommand({ directory, command }) {
  const [, output] = / -o (\S+)/.exec(command) ?? [];
  for (const directoryPath of [directory, ...(output ? [dirname(resolve(directory, output))] : [])])
    mkdirSync(directoryPath, { recursive: true });
  return new Promise((fulfill, reject) => {
    const child = spawn("sh", ["-c", command], { cwd: directory, stdio: ["ignore", "inherit", "inherit"] });
    child.on("close", (code) => (code === 0 ? fulfill() : reject(new Error(`failed (${code}): ${command}`))));
  });
}
