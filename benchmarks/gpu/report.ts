import { type Column, formatMarkdown, type Table } from "../papers/table.ts";
import type { Errors, Result } from "./bench.ts";
import type { Comparison } from "./cases.ts";
import { torchBackends } from "./contenders.ts";
import { countBytes, countExponentials, countFlops, type Problem, createProblem, type Sizes } from "./problem.ts";

/** Maximum rates of a GPU, per second. */
interface Ceilings {
  /** Operations in a large bfloat16 product. */
  readonly flopsPerSecond: number;
  /** Bytes read and written. */
  readonly bytesPerSecond: number;
  /** Exponentials: 16 per clock and multiprocessor (CUDA C++ Programming Guide, throughput of native instructions). */
  readonly exponentialsPerSecond: number;
}

/**
 * Rates of an NVIDIA H200, measured separately: a product of 8192³ on random data, a copy of gigabytes, 132 · 16 ·
 * 1.755 GHz.
 */
const h200Ceilings: Ceilings = { flopsPerSecond: 790e12, bytesPerSecond: 4.3e12, exponentialsPerSecond: 3.7e12 };

/** Seconds of each kind of work at its maximum rate. No implementation runs much faster than the longest. */
interface LowerBound {
  readonly productSeconds: number;
  readonly memorySeconds: number;
  readonly exponentialSeconds: number;
  readonly seconds: number;
}

export function lowerBound(problem: Problem, ceilings: Ceilings): LowerBound {
  const productSeconds = countFlops(problem) / ceilings.flopsPerSecond;
  const memorySeconds = countBytes(problem) / ceilings.bytesPerSecond;
  const exponentialSeconds = countExponentials(problem) / ceilings.exponentialsPerSecond;
  return {
    productSeconds,
    memorySeconds,
    exponentialSeconds,
    seconds: Math.max(productSeconds, memorySeconds, exponentialSeconds),
  };
}

type StoredResults = ReadonlyMap<string, Result>;
type AttentionResult = Result & Comparison & { readonly problem: Problem; readonly flops: number };

/** Formats the results as a page of Markdown. */
export function formatReport(storedResults: StoredResults): string {
  const host = storedResults.get("host") ?? { case: "host" };
  const parts = [
    `# ${host["date"]}, ${host["gpu"]}`,
    `\`\`\`sh\n${((host["commands"] ?? []) as string[]).join("\n")}\n\`\`\``,
    hostLine(host),
    ...operationTable(storedResults).map(formatMarkdown),
    ...attentionTables(storedResults).map(formatMarkdown),
    ...ringTable(storedResults).map(formatMarkdown),
    ...gateTable(storedResults).map(formatMarkdown),
    formatUnsupportedCases(storedResults),
  ];
  return `${parts.filter((part) => part !== "").join("\n\n")}\n`;
}

function hostLine(host: Result): string {
  const { peer = {}, sizes, ...hostFields } = host as Result & { peer?: object; sizes?: object };
  const hostFacts = ["capability", "driver", "cuda", "cublasLt", "mosaic", "node"].flatMap((key) =>
    hostFields[key] === undefined ? [] : [`${key} ${String(hostFields[key])}`],
  );
  const baselineFacts = Object.entries(peer).map(([key, value]) => `${key} ${String(value)}`);
  const sizeFacts = Object.entries(sizes ?? {}).map(([key, value]) => `${key} ${String(value)}`);
  return [
    hostFacts.join(", "),
    baselineFacts.length > 0 ? `PyTorch's side: ${baselineFacts.join(", ")}` : "",
    sizeFacts.join(", "),
  ]
    .filter((line) => line !== "")
    .join(".\n");
}

function readCeilings(storedResults: StoredResults): Ceilings {
  const findRate = (name: string): number | undefined => storedResults.get(name)?.["torch"] as number | undefined;
  return {
    ...h200Ceilings,
    flopsPerSecond: findRate("operation.matmul") ?? h200Ceilings.flopsPerSecond,
    bytesPerSecond: findRate("operation.copy") ?? h200Ceilings.bytesPerSecond,
  };
}

function operationTable(storedResults: StoredResults): Table[] {
  const results = [...storedResults.values()].filter((result) => result.case.startsWith("operation."));
  if (results.length === 0) return [];
  const rows = results.map((result) => {
    const [mosaicRate, torchRate] = [result["mosaic"], result["torch"]] as (number | undefined)[];
    const toTera = (rate: number | undefined): number | undefined => (rate === undefined ? undefined : rate / 1e12);
    return {
      operation: result.case.slice("operation.".length),
      unit: (result["unit"] as string).startsWith("bytes") ? "TB/s" : "TFLOP/s",
      mosaic: toTera(mosaicRate),
      torch: toTera(torchRate),
      ratio: mosaicRate !== undefined && torchRate !== undefined ? mosaicRate / torchRate : undefined,
    };
  });
  const columns: Column[] = [
    { key: "operation", head: "operation" },
    { key: "unit", head: "unit" },
    { key: "mosaic", head: "Mosaic", format: 2 },
    { key: "torch", head: "PyTorch", format: 2 },
    { key: "ratio", head: "Mosaic / PyTorch", format: 2 },
  ];
  return [{ id: "operations", title: "Other operations", columns, rows }];
}

function attentionTables(storedResults: StoredResults): Table[] {
  const results = [...storedResults.values()].filter((result) =>
    result.case.startsWith("attention."),
  ) as AttentionResult[];
  const groups = new Map<string, AttentionResult[]>();
  for (const result of results.toSorted((a, b) => a.problem.n - b.problem.n)) {
    const title = result.case.split(".").slice(1, 5).join(" ");
    groups.set(title, [...(groups.get(title) ?? []), result]);
  }
  return [...groups].map(([title, rows]) => attentionTable(title, rows, readCeilings(storedResults)));
}

function attentionTable(title: string, results: readonly AttentionResult[], ceilings: Ceilings): Table {
  const names = [...new Set(results.flatMap(({ times }) => Object.keys(times)))];
  const mosaicNames = names.filter((name) => !isBaseline(name));
  const columns: Column[] = [
    { key: "n", head: "n", format: "integer" },
    { key: "floor", head: "floor ms", format: 2 },
    ...names.map((name): Column => ({ key: name, head: `${name} TFLOP/s`, format: 1 })),
    ...mosaicNames.map((name): Column => ({ key: `${name} ratio`, head: `${name} / best of PyTorch`, format: 2 })),
    ...mosaicNames.map((name): Column => ({ key: `${name} share`, head: `${name} / floor`, format: "percent" })),
    { key: "beside", head: "other kernels", format: "percent" },
    { key: "idle", head: "idle", format: "percent" },
  ];
  return {
    id: title,
    title: `Attention ${title}`,
    columns,
    rows: results.map((result) => attentionRow(result, mosaicNames, ceilings)),
  };
}

function attentionRow(
  { problem, flops, times }: AttentionResult,
  mosaicNames: readonly string[],
  ceilings: Ceilings,
): Table["rows"][number] {
  const lowerBoundSeconds = lowerBound(problem, ceilings).seconds;
  const minBaselineSeconds = Math.min(
    ...Object.entries(times).flatMap(([name, time]) => (isBaseline(name) ? [time.median] : [])),
  );
  const row: Record<string, number | undefined> = { n: problem.n, floor: lowerBoundSeconds * 1e3 };
  for (const [name, time] of Object.entries(times)) row[name] = flops / time.median / 1e12;
  for (const name of mosaicNames.filter((mosaicName) => times[mosaicName])) {
    const seconds = times[name]!.median;
    row[`${name} ratio`] = Number.isFinite(minBaselineSeconds) ? minBaselineSeconds / seconds : undefined;
    row[`${name} share`] = lowerBoundSeconds / seconds;
    const kernels = Object.entries(times[name]!.kernels ?? {});
    const kernelShare = (kernelTimes: typeof kernels): number =>
      kernelTimes.reduce((sum, [, kernelSeconds]) => sum + kernelSeconds, 0) / seconds;
    const otherShare = kernelShare(kernels.filter(([kernel]) => !kernel.startsWith("attend")));
    row["beside"] = Math.max(row["beside"] ?? 0, otherShare);
    row["idle"] = Math.max(row["idle"] ?? 0, 1 - kernelShare(kernels));
  }
  return row;
}

const isBaseline = (name: string): boolean => (torchBackends as readonly string[]).includes(name) || name === "math";

function ringTable(storedResults: StoredResults): Table[] {
  const results = [...storedResults.values()].filter((result) => result.case.startsWith("ring."));
  if (results.length === 0) return [];
  const columns: Column[] = [
    { key: "case", head: "case" },
    ...["alone", "apart", "ring"].map((runMode): Column => ({ key: runMode, head: `${runMode} ms`, format: 1 })),
    { key: "vsOne", head: "ring / one", format: 2 },
    { key: "vsApart", head: "ring / apart", format: 2 },
  ];
  const rows = results.map((result) => {
    const secondsByMode = result["seconds"] as Record<string, number>;
    const millisecondsByMode = Object.fromEntries(
      Object.entries(secondsByMode).map(([runMode, runSeconds]) => [runMode, runSeconds * 1e3]),
    );
    return {
      case: result.case,
      ...millisecondsByMode,
      vsOne: result["vsOne"] as number,
      vsApart: result["vsApart"] as number,
    };
  });
  return [
    { id: "ring", title: "Time of attention by several ranks on the GPU, compared with one rank", columns, rows },
  ];
}

function gateTable(storedResults: StoredResults): Table[] {
  const results = [...storedResults.values()].filter((result) => result.case.startsWith("gate."));
  if (results.length === 0) return [];
  const names = [...new Set(results.flatMap((result) => Object.keys(result["errors"] as object)))];
  const rows = results.map((result) => {
    const errors = result["errors"] as Record<string, Errors>;
    const maxErrors = Object.entries(errors).map(([contender, tensorErrors]) => [
      contender,
      Math.max(...Object.values(tensorErrors)).toExponential(1),
    ]);
    return { case: result.case, ...Object.fromEntries(maxErrors) };
  });
  const columns = [{ key: "case", head: "case" }, ...names.map((name): Column => ({ key: name, head: name }))];
  return [{ id: "gate", title: "Largest relative error of out, dq, dk, dv against float64", columns, rows }];
}

/** Lists the contenders that refused cases, with their error messages and the number of cases. */
function formatUnsupportedCases(storedResults: StoredResults): string {
  const reasonCounts = new Map<string, number>();
  for (const { refused = {} } of storedResults.values() as Iterable<Result & { refused?: Record<string, string> }>) {
    for (const [contender, reason] of Object.entries(refused)) {
      const line = `- ${contender}: ${reason}`;
      reasonCounts.set(line, (reasonCounts.get(line) ?? 0) + 1);
    }
  }
  return [...reasonCounts].map(([line, count]) => `${line} (${count} cases)`).join("\n");
}

/**
 * Returns tables of the operations and bytes of every length, and of the minimum milliseconds for products, memory and
 * exponentials.
 */
export function lowerBoundTables(
  sizes: Sizes,
  lengths: readonly number[],
  ceilings: Ceilings = h200Ceilings,
): readonly Table[] {
  return (["forward", "backward"] as const).flatMap((direction) =>
    (["full", "causal"] as const).map((mask) => ({
      id: `floor.${direction}.${mask}`,
      title: `${direction}, ${mask}`,
      columns: [
        { key: "n", head: "n", format: "integer" },
        { key: "tflop", head: "TFLOP", format: 2 },
        { key: "gigabytes", head: "GB", format: 2 },
        { key: "products", head: "products ms", format: 2 },
        { key: "memory", head: "memory ms", format: 2 },
        { key: "exp128", head: "exp ms, d 128", format: 2 },
        { key: "exp64", head: "exp ms, d 64", format: 2 },
      ],
      rows: lengths
        .toSorted((a, b) => a - b)
        .map((n) => {
          const variantFields = { direction, dtype: "bf16", mask, n } as const;
          const problem = createProblem({ ...variantFields, d: 128 }, sizes);
          const { productSeconds, memorySeconds, exponentialSeconds } = lowerBound(problem, ceilings);
          return {
            n,
            tflop: countFlops(problem) / 1e12,
            gigabytes: countBytes(problem) / 1e9,
            products: productSeconds * 1e3,
            memory: memorySeconds * 1e3,
            exp128: exponentialSeconds * 1e3,
            exp64: lowerBound(createProblem({ ...variantFields, d: 64 }, sizes), ceilings).exponentialSeconds * 1e3,
          };
        }),
    })),
  );
}
