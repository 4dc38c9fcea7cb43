// Runs all checks of CI, in the order that finds faults soonest. Continues after a fault if later checks can find more,
// and prints a summary.
import { spawnSync } from "node:child_process";

const STEPS = [
  ["structure", "node scripts/check-structure.mjs"],
  ["imports", "node scripts/check-imports.mjs"],
  ["links", "node scripts/check-links.mjs"],
  ["words", "node scripts/check-words.mjs"],
  ["kernels", "node scripts/kernel-headers.mjs --check"],
  ["format", "npm run --silent format:check"],
  ["build", "npm run --silent build"],
  ["typecheck", "npm run --silent typecheck"],
  ["lint", "npm run --silent lint"],
  ["packages", "node scripts/check-packages.mjs"],
  ["options", "node scripts/options-tables.mjs --check"],
  ["test", "npm run --silent test"],
  ["hosts", "node scripts/check-hosts.mjs"],
];

const results = [];
for (const [name, command] of STEPS) {
  console.log(`\n── ${name} ── ${command}`);
  const start = performance.now();
  const { status } = spawnSync(command, { shell: true, stdio: "inherit" });
  results.push({ name, ok: status === 0, seconds: (performance.now() - start) / 1000 });
  // Without a build, the later steps would only repeat the same fault.
  if (name === "build" && status !== 0) break;
}

console.log("\ncheck:");
for (const { name, ok, seconds } of results) {
  console.log(`  ${ok ? "ok    " : "FAILED"}  ${name.padEnd(10)} ${seconds.toFixed(1).padStart(6)} s`);
}
for (const [name] of STEPS.slice(results.length)) console.log(`  not run ${name}`);
process.exit(results.every((result) => result.ok) ? 0 : 1);
