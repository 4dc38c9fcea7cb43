import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { DeviceName } from "@mosaic/attention";
import type { Coordinate, Span, TraceEvent } from "@mosaic/attention/core";
import type { Profile } from "@mosaic/attention/planner";
import type { WorkUnits } from "./progress.ts";

/** Arguments that the program passes to its ranks. */
export interface Job {
  readonly settings: Settings;
  /** Directory for reports and results. */
  readonly directory: string;
  /** Number of steps of rank 0, which reports its progress. */
  readonly totalWork: WorkUnits;
}

/** Report of one rank. Its tensors are in the same directory, one file each. */
export interface RankReport {
  readonly rank: number;
  /** Coordinate of the rank in the mesh. */
  readonly coordinate: Coordinate;
  /** Global positions of its rows, in order. */
  readonly spans: readonly Span[];
  /** Seconds of the host's monotonic clock. */
  readonly begin: number;
  readonly end: number;
  readonly bytesSent: number;
  readonly peakBytes: number;
  readonly events: readonly TraceEvent[];
}

/** Results by name, each [H,S,D]: out and, with gradients, dq, dk and dv. */
export type Results = Readonly<Record<string, Float32Array>>;

/** Writes a rank's report and results to the job's directory. */
export function writeResults(directory: string, report: RankReport, results: Results): void {
  for (const [name, values] of Object.entries(results)) writeFileSync(tensorPath(directory, name, report.rank), values);
  writeFileSync(reportPath(directory, report.rank), JSON.stringify(report));
}

export function readReport(directory: string, rank: number): RankReport {
  return JSON.parse(readFileSync(reportPath(directory, rank), "utf8")) as RankReport;
}

export function readTensor(directory: string, name: string, rank: number): Float32Array {
  const file = readFileSync(tensorPath(directory, name, rank));
  return new Float32Array(file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength));
}

const tensorPath = (directory: string, name: string, rank: number): string => join(directory, `${name}.${rank}.f32`);
const reportPath = (directory: string, rank: number): string => join(directory, `report.${rank}.json`);

/** Settings of one run of the program. */
export interface Settings {
  /** Length of the sequence. Beyond the genome's 48 502 bases, the genome is repeated. */
  readonly tokens: number;
  readonly ranks: number;
  /** Device of the ranks and of the single-device comparison. */
  readonly device?: DeviceName;
  readonly backend: string;
  /** Shape of the ranks for backends with two dimensions, whose meaning depends on the backend. */
  readonly shape?: GridShape;
  /** Number of remote stages of flex. If absent, flex chooses it. */
  readonly stages?: number;
  readonly mask: MaskChoice;
  /** Name of the placement of the sequence. "dispatch" adapts it to the mask. */
  readonly placement: PlacementChoice;
  readonly dtype: "float32" | "bfloat16" | "float16";
  readonly backward: boolean;
  readonly numHeads: number;
  /** Size of one head. */
  readonly headDim: number;
  readonly seed: number;
  readonly json: boolean;
  /** Path of the timeline picture. Empty for none. */
  readonly svgPath: string;
  /** Path of a picture of load and transfers, contiguous beside the chosen placement. Empty for none. */
  readonly dispatchPicturePath: string;
  /** Path of a picture of the prediction beside the measurement. Empty for none. */
  readonly predictionPicturePath: string;
  /** Path of a page with the timeline, tiles, bytes by link and load. Empty for none. */
  readonly htmlPath: string;
  /** Profile of the machine, if it was measured. `auto` and predictions use it. */
  readonly profile?: Profile;
}

/** Returns whether the run needs a prediction, and therefore a profile of this machine's CPU. */
export function needsProfile({ backend, predictionPicturePath }: Settings): boolean {
  return backend === "auto" || predictionPicturePath !== "";
}

/** The masks that this program offers. */
export const maskNames = ["full", "causal", "documents", "window", "block-causal"] as const;
export type MaskName = (typeof maskNames)[number];

/** Choice of the attention mask: its name, and its argument if it has one. */
export interface MaskChoice {
  readonly name: MaskName;
  readonly argument?: number;
}

/** The placements that this program offers. */
export const placementNames = ["contiguous", "zigzag", "striped", "dispatch"] as const;
export type PlacementChoice = (typeof placementNames)[number];

/** Shape of ranks in two dimensions. */
export type GridShape = readonly [number, number];

/** Returns all shapes of `ranks` ranks, the most nearly square first, and of two equally square shapes the wider. */
export function gridShapes(ranks: number): readonly GridShape[] {
  const shapes: GridShape[] = [];
  for (let rows = 1; rows <= ranks; rows++) if (ranks % rows === 0) shapes.push([rows, ranks / rows]);
  return shapes.toSorted((a, b) => Math.max(...a) - Math.max(...b) || a[0] - b[0]);
}

/** Parses a shape such as "2x4". Returns undefined for other text. */
export function parseGridShape(text: string): GridShape | undefined {
  const shapeMatch = /^([1-9]\d?)[x×]([1-9]\d?)$/.exec(text);
  return shapeMatch ? [Number(shapeMatch[1]), Number(shapeMatch[2])] : undefined;
}
