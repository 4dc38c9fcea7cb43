// Shared code of check-arm.mjs and check-native.mjs: long checks in named parts, and suites without the tests that an
// emulator or a sanitizer cannot pass.
import { spawnSync } from "node:child_process";

/** Runs a command with this process's output. Returns whether its exit code is 0. */
export function run(command, args, options = {}) {
  const { status, error } = spawnSync(command, args, { stdio: "inherit", ...options });
  if (error) throw error;
  return status === 0;
}

/**
 * Returns Vitest arguments that exclude tests by the beginning of their names. Prints the excluded tests and the
 * reasons.
 */
export function createExcludeArguments(packageName, reasons) {
  const names = Object.keys(reasons);
  for (const name of names) console.log(`${packageName}: NOT RUN: "${name} …": ${reasons[name]}`);
  return names.length > 0 ? ["--testNamePattern", `^(?!.*(${names.join("|")}))`] : [];
}

/** Exits with code 1 if a name is not that of a part. */
export function requireParts(script, parts, names) {
  const unknownNames = names.filter((name) => !(name in parts));
  if (unknownNames.length === 0) return;
  console.error(
    `${script}: expected parts among ${Object.keys(parts).join(", ")}, received ${unknownNames.join(", ")}`,
  );
  process.exit(1);
}

/** Runs the named parts, or all if none is named, prints a table, and exits. Stops after a `build` that fails. */
export function runParts(script, parts, names) {
  const results = [];
  for (const [name, part] of Object.entries(parts)) {
    if (names.length > 0 && !names.includes(name)) continue;
    console.log(`\n── ${name}`);
    const start = performance.now();
    const ok = part();
    results.push({ name, ok, seconds: (performance.now() - start) / 1000 });
    if (name === "build" && !ok) break;
  }
  console.log(`\n${script}:`);
  for (const { name, ok, seconds } of results) {
    console.log(`  ${ok ? "ok    " : "FAILED"}  ${name.padEnd(18)} ${seconds.toFixed(0).padStart(5)} s`);
  }
  process.exit(results.every(({ ok }) => ok) ? 0 : 1);
}
