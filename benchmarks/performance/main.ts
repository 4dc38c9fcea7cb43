// Draws docs/performance.md's charts from rows of `npm run bench -- --json`.
//
//   npm run bench:performance [-- rows.jsonl]
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { barChart, type Group } from "./chart.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const rowsPath = process.argv[2] ?? `${root}benchmarks/results/2026-11-23-cpu.jsonl`;

interface ResultRow {
  readonly case: string;
  readonly vsPeer?: number;
  readonly share?: number;
  readonly medianShare?: number;
}

const rows = readFileSync(rowsPath, "utf8")
  .trim()
  .split("\n")
  .map((row) => JSON.parse(row) as ResultRow);

/** Rows of cases that begin so, with what follows as their labels. */
function groupOf(heading: string, prefix: string, field: "vsPeer" | "medianShare"): Group {
  const chosen = rows.filter((row) => row.case.startsWith(prefix) && row[field] !== undefined);
  return { heading, bars: chosen.map((row) => ({ label: row.case.slice(prefix.length), value: row[field]! })) };
}

const ratio = (value: number): string => `${value.toFixed(2)} ×`;
const percent = (value: number): string => `${(value * 100).toFixed(0)} %`;

const directions = ["forward", "backward"] as const;
const dtypes = ["f32", "bf16"] as const;
const attention = directions.flatMap((direction) => dtypes.map((dtype) => `${direction}.${dtype}`));

const charts = {
  "performance-peers": barChart(
    [
      ...attention.map((kind) => groupOf(`attention ${kind}, warm`, `peer.${kind}.`, "vsPeer")),
      ...dtypes.map((dtype) => groupOf(`decoding ${dtype}`, `peer-decode.${dtype}.`, "vsPeer")),
      groupOf("decoding, beside onnxruntime", "peer-onnx.decode.", "vsPeer"),
      groupOf("linear layers, beside onnxruntime", "peer-onnx.linear.", "vsPeer"),
      groupOf("linear layers", "peer-linear.", "vsPeer"),
      groupOf("linear layers, bias, gelu", "peer-linear-gelu.", "vsPeer"),
      groupOf("calls", "peer-call.", "vsPeer"),
      groupOf("a training step", "peer-step.", "vsPeer"),
    ].filter(({ bars }) => bars.length > 0),
    {
      title: "Beside PyTorch 2.13, and onnxruntime 1.30, on the same cores",
      subtitle: "How many times as fast; medians over turns of one run. Dashed: as fast, and 1.2 times.",
      limit: 6,
      marks: [1, 1.2],
      format: ratio,
    },
  ),
  "performance-limits": barChart(
    [
      ...attention.map((kind) => groupOf(`attention ${kind}: of the peak`, `local.${kind}.`, "medianShare")),
      groupOf("matrix products: of the peak", "gemm.", "medianShare"),
      ...dtypes.map((dtype) => groupOf(`decoding ${dtype}: of read bandwidth`, `decode.${dtype}.`, "medianShare")),
    ].filter(({ bars }) => bars.length > 0),
    {
      title: "Relative to the machine's limits",
      subtitle:
        "Shares of the peak of products on vector registers (above 100 %: tile registers), or of what the cores read of as large a working set.",
      limit: 1.5,
      marks: [0.8, 1],
      format: percent,
    },
  ),
};

for (const [name, svg] of Object.entries(charts)) writeFileSync(`${root}docs/images/${name}.svg`, svg);
