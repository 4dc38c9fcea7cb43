// Runs the tests of the bundle: `./mosaic test [package…] [-- vitest options]`. Packages are directory names. Default:
// all.
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { listPackages } from "../../workspace.mjs";

const root = fileURLToPath(new URL("../../..", import.meta.url));
const vitest = join(root, "node_modules/vitest/vitest.mjs");
const TEST_TIME_LIMIT_MS = 10 * 60_000;

const testedPackages = listPackages(root).filter(({ manifest }) => manifest.scripts?.test);
const args = process.argv.slice(2);
const end = args.includes("--") ? args.indexOf("--") : args.length;
const [names, vitestArguments] = [args.slice(0, end), args.slice(end + 1)];
const unknownNames = names.filter((name) => !testedPackages.some(({ directory }) => directory === name));
if (unknownNames.length > 0) {
  console.error(
    `unknown package "${unknownNames[0]}"; expected one of ${testedPackages.map(({ directory }) => directory).join(", ")}`,
  );
  process.exit(2);
}

const selectedPackages =
  names.length === 0 ? testedPackages : testedPackages.filter(({ directory }) => names.includes(directory));
const results = selectedPackages.map(({ directory, dir }) => {
  console.log(`\n── ${directory}`);
  const start = performance.now();
  const { status } = spawnSync(
    process.execPath,
    [vitest, "run", "--config", join(root, "vitest.config.ts"), ...vitestArguments],
    {
      cwd: dir,
      stdio: "inherit",
      timeout: TEST_TIME_LIMIT_MS,
    },
  );
  return { directory, ok: status === 0, seconds: (performance.now() - start) / 1000 };
});

console.log();
for (const { directory, ok, seconds } of results) {
  console.log(`  ${ok ? "ok    " : "FAILED"}  ${directory.padEnd(18)} ${seconds.toFixed(1).padStart(6)} s`);
}
process.exit(results.every(({ ok }) => ok) ? 0 : 1);
