import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { comparisonChart } from "./chart.ts";
import { compare, comparisonTable } from "./comparison.ts";
import { distributions } from "./lengths.ts";
import { type TargetsRow, measureTargets, markdownTable, targetsSummary, targetsTable } from "./marks.ts";
import { predictStageTimes, stagesTable } from "./stages.ts";
import { measureOptimumGaps, optimumSummary } from "./optimum.ts";

const help = `Compares predicted step times of placements with lower bounds, optima and other context-parallel strategies.

  npm run bench:dispatch -- [options]

  --part NAME      marks: each placement beside its lower bound and the goals [default]
                   optimum: 200 small problems beside their optima
                   stages: predicted step times with and without stages
                   comparison: other context-parallel strategies
                   lengths: the distributions of document lengths
  --seeds N,…      seeds of the drawn lengths [20261123]; parts other than marks use the first
  --passes NAME    forward or both, for marks [forward]
  --ranks N,…      numbers of ranks, for stages and comparison [16]
  --out PREFIX     also writes the rows as JSON lines, and the chart, to files with this prefix
  -h, --help       show this help`;

const { values } = parseArgs({
  options: {
    part: { type: "string", default: "marks" },
    seeds: { type: "string", default: "20261123" },
    passes: { type: "string", default: "forward" },
    ranks: { type: "string", default: "16" },
    out: { type: "string" },
    help: { type: "boolean", short: "h", default: false },
  },
});
const seeds = values.seeds.split(",").map(Number);
const writeFile = (suffix: string, content: string): void => {
  if (values.out !== undefined) writeFileSync(`${values.out}${suffix}`, content);
};
const jsonLines = (rows: readonly unknown[]): string => `${rows.map((row) => JSON.stringify(row)).join("\n")}\n`;

const partRunners: Readonly<Record<string, () => void>> = {
  marks() {
    const passes = values.passes === "both" ? "both" : "forward";
    const allRows: TargetsRow[] = [];
    for (const seed of seeds) {
      const rows = [...measureTargets({ seed, passes })];
      allRows.push(...rows);
      console.log(`Seed ${seed}, ${passes}:\n\n${targetsTable(rows)}\n`);
    }
    console.log(targetsSummary(allRows));
    writeFile("-marks.jsonl", jsonLines(allRows));
  },
  optimum() {
    console.log(optimumSummary(measureOptimumGaps(200, seeds[0]!)));
  },
  comparison() {
    const ranks = values.ranks.split(",").map(Number);
    const rows = [...compare(seeds[0]!, ranks)];
    console.log(comparisonTable(rows));
    writeFile("-comparison.jsonl", jsonLines(rows));
    writeFile(
      "-comparison.svg",
      comparisonChart(rows, "Time of attention with context parallelism on H100s, packed documents"),
    );
  },
  stages() {
    const rows = [...predictStageTimes(seeds[0]!, values.ranks.split(",").map(Number))];
    console.log(stagesTable(rows));
    writeFile("-stages.jsonl", jsonLines(rows));
  },
  lengths() {
    console.log(
      markdownTable(
        ["distribution", "parameters"],
        Object.entries(distributions).map(([name, { source }]) => [name, source]),
      ),
    );
  },
};
const runPart = values.help ? () => console.log(help) : partRunners[values.part];
if (!runPart)
  throw new Error(
    `bench:dispatch: --part: expected one of ${Object.keys(partRunners).join(", ")}; received ${values.part}`,
  );
runPart();
