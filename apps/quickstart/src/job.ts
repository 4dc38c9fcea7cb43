import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Coordinate, Span, TraceEvent } from "@mosaic/attention/core";
import type { WorkUnits } from "./progress.ts";
import type { Settings } from "./settings.ts";

/** What the program gives its ranks. */
export interface Job {
  readonly settings: Settings;
  /** For what they find. */
  readonly folder: string;
  /** The work of rank 0, which reports how far it is. */
  readonly pieces: WorkUnits;
}

/** The report of one rank; its tensors lie beside, one file each. */
export interface RankReport {
  readonly rank: number;
  /** Its place in the mesh. */
  readonly at: Coordinate;
  /** Global positions of its rows, in order. */
  readonly spans: readonly Span[];
  /** Seconds of the host's monotonic clock. */
  readonly begin: number;
  readonly end: number;
  readonly bytesSent: number;
  readonly peakBytes: number;
  readonly events: readonly TraceEvent[];
}

/** Results by name, each [H,S,D]: out; with gradients dq, dk and dv too. */
export type Results = Readonly<Record<string, Float32Array>>;

/** Leaves a rank's findings in the job's folder. */
export function writeResults(folder: string, report: RankReport, results: Results): void {
  for (const [name, values] of Object.entries(results)) writeFileSync(tensorFile(folder, name, report.rank), values);
  writeFileSync(reportFile(folder, report.rank), JSON.stringify(report));
}

export function readReport(folder: string, rank: number): RankReport {
  return JSON.parse(readFileSync(reportFile(folder, rank), "utf8")) as RankReport;
}

export function readTensor(folder: string, name: string, rank: number): Float32Array {
  const file = readFileSync(tensorFile(folder, name, rank));
  return new Float32Array(file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength));
}

const tensorFile = (folder: string, name: string, rank: number): string => join(folder, `${name}.${rank}.f32`);
const reportFile = (folder: string, rank: number): string => join(folder, `report.${rank}.json`);
