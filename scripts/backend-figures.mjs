// Writes the tables of predicted figures into docs/backends.md: the planner runs each backend's code on symbolic ranks.
//
//   node scripts/backend-figures.mjs [--check] [name …]     (after a build)
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";
import { masks } from "@mosaic/core";
import { plan } from "@mosaic/strategies/plan";

/** The page with the tables. */
export const file = fileURLToPath(new URL("../docs/backends.md", import.meta.url));

const GPU_OPTIONS = { numHeads: 32, numKvHeads: 8, headDim: 128, gpusPerNode: 8, profile: "h100-ib400" };
const DOCUMENT_LENGTHS = Array.from({ length: 64 }, (_, i) => 512 * (1 + ((i * 37) % 7)));
const TOKENS = DOCUMENT_LENGTHS.reduce((sum, length) => sum + length, 0);

/** Cases to plan, by their name in the page's markers. */
const CASES = {
  causal: { ...GPU_OPTIONS, tokens: 131_072, mask: masks.causal() },
  window: { ...GPU_OPTIONS, tokens: 131_072, mask: masks.slidingWindow(4096) },
  documents: { ...GPU_OPTIONS, tokens: TOKENS, mask: masks.documents(DOCUMENT_LENGTHS, "causal") },
  nodes: { ...GPU_OPTIONS, nodes: 4, tokens: 1_048_576, mask: masks.causal(), simulate: 8 },
};
const MAX_ROWS = 6;

/** Returns the table of a case: the best strategy of each family, in the planner's order. */
export function createTable(name) {
  const { ranking, job } = plan(CASES[name]);
  const families = new Set();
  const shownStrategies = ranking.filter(({ family, evaluatedBy }) => {
    const isFirstOfFamily = evaluatedBy === "simulation" && !families.has(family);
    families.add(family);
    return isFirstOfFamily;
  });
  const formatMilliseconds = (seconds) => (1000 * seconds).toFixed(1);
  const formatMegabytes = (bytes) => (bytes / 1e6).toFixed(0);
  const hasSeveralNodes = job.nodes > 1;
  const rows = shownStrategies.slice(0, MAX_ROWS).map((strategy) => [
    `\`${strategy.name}\``,
    `\`{ ${Object.entries(strategy.mesh)
      .map(([axis, size]) => `${axis}: ${size}`)
      .join(", ")} }\``,
    formatMilliseconds(strategy.seconds),
    formatMilliseconds(strategy.exposedSeconds),
    formatMegabytes(strategy.bytesWithinNodes),
    ...(hasSeveralNodes ? [formatMegabytes(strategy.bytesBetweenNodes)] : []),
    formatMegabytes(strategy.peakBytes),
  ]);
  const head = [
    "strategy",
    "mesh",
    "ms",
    "waits, ms",
    "MB within a node",
    ...(hasSeveralNodes ? ["MB between"] : []),
    "peak MB",
  ];
  const rule = head.map((_, i) => (i < 2 ? "---" : "--:"));
  return [head, rule, ...rows].map((cells) => `| ${cells.join(" | ")} |`).join("\n");
}

/** Returns the page with the tables of the named cases recomputed. */
function updateTables(text, names) {
  return names.reduce((page, name) => {
    const [begin, end] = [`<!-- figures ${name}: node scripts/backend-figures.mjs -->`, "<!-- /figures -->"];
    const [textBefore, textAfter] = page.split(begin);
    if (textAfter === undefined) throw new Error(`docs/backends.md: expected a line ${begin}, received none`);
    return `${textBefore}${begin}\n\n${createTable(name)}\n\n${textAfter.slice(textAfter.indexOf(end))}`;
  }, text);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [options, names] = [process.argv.slice(2).filter((each) => each.startsWith("--")), process.argv.slice(2)];
  const caseNames = names.filter((each) => !each.startsWith("--"));
  const text = readFileSync(file, "utf8");
  const updatedText = updateTables(text, caseNames.length > 0 ? caseNames : Object.keys(CASES));
  if (!options.includes("--check")) writeFileSync(file, updatedText);
  else if (updatedText !== text) {
    console.error("docs/backends.md: the figures are out of date; run node scripts/backend-figures.mjs");
    process.exit(1);
  }
}
