import { writeFileSync } from "node:fs";
import { escape } from "@mosaic/planner/svg";
import { Resvg } from "@resvg/resvg-js";
import { type Comparison, type PlantedResult, readResult, RESULTS_URL } from "../results.ts";
import { drawLossAgainstBytes, drawRecall } from "./comparison-pictures.ts";
import { drawRoutingMap } from "./routing-picture.ts";

const styleSheet = `
body { font: 15px/1.5 "Helvetica Neue", Arial, sans-serif; color: #1c2330; max-width: 920px; margin: 32px auto; padding: 0 16px }
svg { max-width: 100%; height: auto; margin: 12px 0 28px } table { border-collapse: collapse; margin: 8px 0 24px }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid #e4e8ee } th:first-child, td:first-child { text-align: left }
code { background: #f3f5f8; padding: 1px 4px }`;

/** Returns a self-contained page with pictures and tables of all results, and the commands that produced them. */
export function formatPage(
  comparison: Comparison,
  plantedResult: PlantedResult,
  pictures: Readonly<Record<string, string>>,
): string {
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Bacteriophage λ, modeled by routed attention</title><style>${styleSheet}</style></head>
<body>
<h1>Bacteriophage λ, modeled by routed attention</h1>
<p>Small models predict masked bases of the genome of bacteriophage λ (NC_001416.1, 48 502 bases). Each chunk attends to itself
(local), to itself and the few chunks that a learned router selects (meta), or to all chunks (ring). All methods use the same number of
multiply-adds.</p>
${pictures["loss-bytes"]}
${formatTable(["method", "steps", "held-out loss", "MB sent", "recall", "chance level"], methodRows(comparison))}
${describeOrigin(comparison)}
${pictures["routing"]}
<h2>Planted repeats</h2>
<p>Every chunk contains a marker, a key and a repeat. Two chunks, at least two apart, have the same key and repeat, and in one of them
the repeat is masked: only the other chunk contains the masked bases. The router is expected to select that chunk.</p>
${pictures["recall"]}
${formatTable(["seed", "recall@2", "pairs", "chance level", "loss on masked bases"], plantedRows(plantedResult))}
${describeOrigin(plantedResult)}
</body></html>
`;
}

function methodRows({ methods }: Comparison): readonly (readonly string[])[] {
  return methods.map(({ name, curve, recall }) => {
    const { step, held, bytes } = curve.at(-1)!;
    const recallCells = recall ? [recall.recall.toFixed(3), recall.chance.toFixed(3)] : ["", ""];
    return [name, String(step), held!.loss.toFixed(4), (bytes / 1e6).toFixed(1), ...recallCells];
  });
}

function plantedRows({ runs }: PlantedResult): readonly (readonly string[])[] {
  return runs.map(({ settings, recall, pairs, chance, loss }) => [
    String(settings.seed),
    recall.toFixed(3),
    String(pairs),
    chance.toFixed(3),
    loss.toFixed(4),
  ]);
}

function formatTable(headerCells: readonly string[], rows: readonly (readonly string[])[]): string {
  const formatRow = (cells: readonly string[], tag: string): string =>
    `<tr>${cells.map((cell) => `<${tag}>${escape(cell)}</${tag}>`).join("")}</tr>`;
  return `<table>${formatRow(headerCells, "th")}${rows.map((cells) => formatRow(cells, "td")).join("")}</table>`;
}

function describeOrigin({ date, command }: { readonly date: string; readonly command: string }): string {
  return `<p>${escape(date)}: <code>${escape(command)}</code></p>`;
}

/** Number of PNG pixels per SVG pixel, in each direction. */
const PIXEL_RATIO = 2;

/** Draws the pictures of results, as SVG by name. */
export function drawPictures(comparison: Comparison, plantedResult: PlantedResult): Readonly<Record<string, string>> {
  const mapMethod = comparison.methods.find(({ name }) => name === "meta 2")!;
  return {
    routing: drawRoutingMap(comparison.map, mapMethod),
    "loss-bytes": drawLossAgainstBytes(comparison),
    recall: drawRecall(comparison, plantedResult),
  };
}

/** Renders an SVG picture as PNG. */
export function renderPng(svg: string): Uint8Array {
  const font = { loadSystemFonts: true, defaultFontFamily: "DejaVu Sans" };
  return new Resvg(svg, { fitTo: { mode: "zoom", value: PIXEL_RATIO }, font }).render().asPng();
}

/** Writes all results: each picture as SVG and PNG, and a page with all pictures. */
export function writeResultsPage(): void {
  const comparison = readResult<Comparison>(new URL("genome.jsonl", RESULTS_URL));
  const plantedResult = readResult<PlantedResult>(new URL("planted.jsonl", RESULTS_URL));
  const pictures = drawPictures(comparison, plantedResult);
  for (const [name, svg] of Object.entries(pictures)) {
    writeFileSync(new URL(`${name}.svg`, RESULTS_URL), svg);
    writeFileSync(new URL(`${name}.png`, RESULTS_URL), renderPng(svg));
  }
  writeFileSync(new URL("index.html", RESULTS_URL), formatPage(comparison, plantedResult, pictures));
  console.log(`wrote ${Object.keys(pictures).join(", ")} (each as SVG and PNG) and index.html to apps/genome/results`);
}
