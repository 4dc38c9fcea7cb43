// Runs all tests and benchmarks that need a GPU, within a time budget: `./mosaic gpu`, or in a built repository
// `node scripts/bundle/inside/gpu.mjs`.
import { appendFileSync, mkdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { runStep } from "./gpu/run-step.mjs";
import { createSteps } from "./gpu/steps.mjs";

const HELP = `Runs all tests and benchmarks that require a GPU, one step at a time, and continues after failures.

  ./mosaic gpu [options]

  --budget TIME   total time, such as 10m or 540s (10m); the benchmarks use the remaining time
  --out DIR       output folder (mosaic-gpu): summary.md, summary.json, log.txt, and the benchmarks' gpu.md and gpu.jsonl
  --only NAMES    run only these steps, names separated by commas; --list prints the names (all steps)
  --list          print the steps with their descriptions
  -h, --help      show this help

Exit code: 0 if all steps that ran succeeded, 1 if a step failed, 2 if the command line is invalid.`;

/** Minimum remaining time to start a step. */
const MIN_STEP_SECONDS = 5;
const NUM_TAIL_LINES = 15;

const { values } = parseArgs({
  options: {
    budget: { type: "string", default: "10m" },
    out: { type: "string", default: "mosaic-gpu" },
    only: { type: "string", default: "" },
    list: { type: "boolean", default: false },
    help: { type: "boolean", short: "h", default: false },
  },
});
process.exitCode = await main();

async function main() {
  const out = resolve(values.out);
  const steps = createSteps(fileURLToPath(new URL("../../..", import.meta.url)), out);
  const selectedNames = values.only === "" ? steps.map(({ name }) => name) : values.only.split(",");
  const unknownName = selectedNames.find((name) => !steps.some((step) => step.name === name));
  const budget = parseSeconds(values.budget);
  if (values.help || values.list) {
    console.log(
      values.help ? HELP : steps.map(({ name, about: description }) => `${name.padEnd(12)} ${description}`).join("\n"),
    );
    return 0;
  }
  if (unknownName !== undefined || budget === undefined) {
    console.error(
      unknownName === undefined
        ? `--budget: expected a time, such as 10m or 540s, received "${values.budget}"`
        : `--only: expected step names (${steps.map(({ name }) => name).join(", ")}), received "${unknownName}"`,
    );
    return 2;
  }
  mkdirSync(out, { recursive: true });
  writeFileSync(join(out, "log.txt"), "");
  const end = performance.now() + budget * 1000;
  const results = [];
  for (const step of steps.filter(({ name }) => selectedNames.includes(name))) {
    results.push(await runOrSkip(step, (end - performance.now()) / 1000, out));
    writeFileSync(join(out, "summary.json"), JSON.stringify({ budget, steps: results }, null, 2));
    writeFileSync(join(out, "summary.md"), formatTable(results));
  }
  console.log(`\n${formatTable(results)}\nresults in ${out}`);
  return results.every(({ outcome, skipped: isSkipped }) => isSkipped || outcome === "ok") ? 0 : 1;
}

/** Runs one step if there is time and it is not to be skipped. If it fails, prints the end of its output. */
async function runOrSkip(step, remainingSeconds, out) {
  const { name, about: description, seconds = remainingSeconds, within: createLimitOptions, skip: skipReason } = step;
  if (skipReason !== undefined) return { name, about: description, outcome: skipReason, skipped: true, seconds: 0 };
  if (remainingSeconds < MIN_STEP_SECONDS) return { name, about: description, outcome: "no time left", seconds: 0 };
  const limitSeconds = Math.min(seconds, remainingSeconds);
  console.log(`── ${name}: ${description}, at most ${limitSeconds.toFixed(0)} s`);
  const file = join(out, "log.txt");
  const command = [...step.command, ...(createLimitOptions?.(limitSeconds) ?? [])];
  appendFileSync(file, `\n══ ${name}: ${command.join(" ")}\n`);
  let tail = "";
  const result = await runStep({ ...step, command }, limitSeconds, (data) => {
    appendFileSync(file, data);
    tail = (tail + data).split("\n").slice(-NUM_TAIL_LINES).join("\n");
  });
  console.log(
    result.outcome === "ok" ? `   ok, ${result.seconds.toFixed(1)} s` : `${tail.trimEnd()}\n   ${result.outcome}`,
  );
  return { name, about: description, ...result };
}

function formatTable(results) {
  const rows = results.map(({ name, about: description, outcome, seconds }) => [
    name,
    description,
    outcome,
    `${seconds.toFixed(1)} s`,
  ]);
  const tableRows = [["step", "is", "outcome", "took"], ["---", "---", "---", "--:"], ...rows];
  return `${tableRows.map((cells) => `| ${cells.join(" | ")} |`).join("\n")}\n`;
}

function parseSeconds(text) {
  const [, amount, unit] = /^(\d+(?:\.\d+)?)(s|m|h)?$/.exec(text) ?? [];
  return amount === undefined ? undefined : Number(amount) * { s: 1, m: 60, h: 3600 }[unit ?? "s"];
}
