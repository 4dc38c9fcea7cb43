// Draws the charts of docs/performance.md from rows of `npm run bench -- --json`.
//
//   npm run bench:performance                     the committed results, of every machine
//   npm run bench:performance -- rows.jsonl NAME  docs/images/performance-{peers,limits}-NAME.svg
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { barChart, type Group } from "./chart.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const results = `${root}benchmarks/results`;

/** Results of a machine, and the name in the files of its charts. */
interface Machine {
  readonly path: string;
  readonly name: string;
}

const [resultsPath, machineName = "own"] = process.argv.slice(2);
const machines: readonly Machine[] = resultsPath
  ? [{ path: resultsPath, name: machineName }]
  : [
      { path: `${results}/2026-11-29-cpu-zen4.jsonl`, name: "zen4" },
      { path: `${results}/2026-11-23-cpu.jsonl`, name: "sapphire-rapids" },
      { path: `${results}/2026-11-24-cpu-zen5.jsonl`, name: "zen5" },
    ];

interface ResultRow {
  readonly case: string;
  readonly vsPeer?: number;
  readonly share?: number;
  readonly medianShare?: number;
}

const readRows = (path: string): ResultRow[] =>
  readFileSync(path, "utf8")
    .trim()
    .split("\n")
    .map((row) => JSON.parse(row) as ResultRow);

/** Selects rows of cases whose names start with `prefix`. The rest of a name is the label of its bar. */
type GroupFactory = (heading: string, prefix: string, field: "vsPeer" | "medianShare") => Group;

function createGroupFactory(rows: readonly ResultRow[]): GroupFactory {
  return (heading, prefix, field) => {
    const matchingRows = rows.filter((row) => row.case.startsWith(prefix) && row[field] !== undefined);
    return { heading, bars: matchingRows.map((row) => ({ label: row.case.slice(prefix.length), value: row[field]! })) };
  };
}

const formatRatio = (value: number): string => `${value.toFixed(2)} ×`;
const formatPercent = (value: number): string => `${(value * 100).toFixed(0)} %`;

const directions = ["forward", "backward"] as const;
const dtypes = ["f32", "bf16"] as const;
const attentionKinds = directions.flatMap((direction) => dtypes.map((dtype) => `${direction}.${dtype}`));

function drawBaselineSpeedups(createGroup: GroupFactory): string {
  const groups = [
    ...attentionKinds.map((kind) => createGroup(`attention ${kind}, warm`, `peer.${kind}.`, "vsPeer")),
    ...dtypes.map((dtype) => createGroup(`decoding ${dtype}`, `peer-decode.${dtype}.`, "vsPeer")),
    createGroup("decoding, over onnxruntime", "peer-onnx.decode.", "vsPeer"),
    createGroup("linear layers, over onnxruntime", "peer-onnx.linear.", "vsPeer"),
    createGroup("linear layers", "peer-linear.", "vsPeer"),
    createGroup("linear layers, bias, gelu", "peer-linear-gelu.", "vsPeer"),
    createGroup("calls", "peer-call.", "vsPeer"),
    createGroup("a training step", "peer-step.", "vsPeer"),
  ];
  return barChart(
    groups.filter(({ bars }) => bars.length > 0),
    {
      title: "Speedup over PyTorch 2.13 and onnxruntime 1.30 on the same cores",
      subtitle: "Medians over the turns of one run. Dashed: 1 × and 1.2 ×.",
      maxValue: 6,
      markedValues: [1, 1.2],
      format: formatRatio,
    },
  );
}

function drawLimits(createGroup: GroupFactory): string {
  const groups = [
    ...attentionKinds.map((kind) =>
      createGroup(`attention ${kind}: share of the peak`, `local.${kind}.`, "medianShare"),
    ),
    createGroup("attention forward.f32, AVX2: share of the AVX2 peak", "avx2.local.forward.f32.", "medianShare"),
    createGroup("matrix products: share of the peak", "gemm.", "medianShare"),
    ...dtypes.map((dtype) =>
      createGroup(`decoding ${dtype}: share of the read bandwidth`, `decode.${dtype}.`, "medianShare"),
    ),
  ];
  return barChart(
    groups.filter(({ bars }) => bars.length > 0),
    {
      title: "Share of the hardware limits",
      subtitle:
        "Share of the peak vector throughput (above 100 %: tile registers), or of the read bandwidth for the same working set.",
      maxValue: 1.5,
      markedValues: [0.8, 1],
      format: formatPercent,
    },
  );
}

for (const { path, name } of machines) {
  const createGroup = createGroupFactory(readRows(path));
  writeFileSync(`${root}docs/images/performance-peers-${name}.svg`, drawBaselineSpeedups(createGroup));
  writeFileSync(`${root}docs/images/performance-limits-${name}.svg`, drawLimits(createGroup));
}
