// Compares the speed of two built checkouts of this repository. Each scenario runs alternately in a fresh process of
// either checkout. Every pair of runs gives a ratio: the baseline's time divided by this checkout's. Load that lasts
// longer than a pair affects both sides equally.
//
//   node benchmarks/compare/compare.mjs <baseline checkout> [--pairs 15] [--filter text,…] [--json]
//
// Printed for each scenario: the geometric mean of the ratios, and its two-sided 95 % confidence interval (Student's t on
// logarithms). A ratio above 1 means that this checkout is faster.
import { spawnSync } from "node:child_process";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const repositoryRoot = fileURLToPath(new URL("../..", import.meta.url));
const scenariosPath = fileURLToPath(new URL("scenarios.mjs", import.meta.url));

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    pairs: { type: "string", default: "15" },
    filter: { type: "string", default: "" },
    json: { type: "boolean", default: false },
  },
});
if (positionals.length !== 1) {
  console.error(
    `usage: node benchmarks/compare/compare.mjs <baseline checkout> [--pairs N] [--filter TEXT,…] [--json]

  --pairs N         pairs of runs per scenario (15)
  --filter TEXT,…   runs only scenarios whose name contains one of the texts
  --json            prints one JSON object per scenario`,
  );
  process.exit(2);
}
const baselineRoot = resolve(positionals[0]);
const pairs = Number(values.pairs);
const names = runScenarios(repositoryRoot, "--list").filter((name) =>
  values.filter.split(",").some((text) => name.includes(text)),
);

for (const name of names) {
  const logRatios = [];
  const times = [[], []];
  for (let pair = 0; pair < pairs; pair++) {
    // The order alternates, so that neither side always runs second.
    const order = pair % 2 === 0 ? [baselineRoot, repositoryRoot] : [repositoryRoot, baselineRoot];
    const [a, b] = order.map((root) => Number(runScenarios(root, name)[0]));
    const [baselineRunMilliseconds, currentRunMilliseconds] = pair % 2 === 0 ? [a, b] : [b, a];
    times[0].push(baselineRunMilliseconds);
    times[1].push(currentRunMilliseconds);
    logRatios.push(Math.log(baselineRunMilliseconds / currentRunMilliseconds));
  }
  const { mean, low, high } = confidenceInterval(logRatios);
  const [baselineMilliseconds, currentMilliseconds] = times.map(median);
  if (values.json)
    console.log(
      JSON.stringify({
        scenario: name,
        ratio: mean,
        low,
        high,
        before: baselineMilliseconds,
        now: currentMilliseconds,
        pairs,
      }),
    );
  else {
    const rangeText = `${low.toFixed(3)} … ${high.toFixed(3)}`;
    console.log(
      `${name.padEnd(28)} ${mean.toFixed(3)}  [${rangeText}]  ${formatMilliseconds(baselineMilliseconds)} → ${formatMilliseconds(currentMilliseconds)}`,
    );
  }
}

/** Runs scenarios with the packages of the checkout `root` and returns the printed lines. */
function runScenarios(root, name) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [scenariosPath, root, name], {
    encoding: "utf8",
    env: { ...process.env, MOSAIC_DEVICE: "cpu" },
  });
  if (status !== 0) throw new Error(`scenario ${name} in ${root}: expected exit code 0, received ${status}: ${stderr}`);
  return stdout.trim().split("\n");
}

/** Returns the 0.975 quantile of Student's t distribution, approximate above 15 degrees of freedom. */
function studentQuantile(degreesOfFreedom) {
  const table = [
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131,
  ];
  return table[degreesOfFreedom - 1] ?? (degreesOfFreedom <= 30 ? 2.09 : 1.98);
}

function confidenceInterval(logRatios) {
  const n = logRatios.length;
  const mean = logRatios.reduce((a, b) => a + b, 0) / n;
  const variance = logRatios.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (n - 1);
  const halfWidth = studentQuantile(n - 1) * Math.sqrt(variance / n);
  return { mean: Math.exp(mean), low: Math.exp(mean - halfWidth), high: Math.exp(mean + halfWidth) };
}

function median(numbers) {
  return numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)];
}

function formatMilliseconds(milliseconds) {
  return milliseconds < 10 ? `${(milliseconds * 1000).toFixed(0)} µs` : `${milliseconds.toFixed(1)} ms`;
}
