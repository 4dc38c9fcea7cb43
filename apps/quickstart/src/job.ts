import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { DeviceName } from "@mosaic/attention";
import type { Coordinate, Span, TraceEvent } from "@mosaic/attention/core";
import type { Profile } from "@mosaic/attention/planner";
import type { WorkUnits } from "./progress.ts";

/** What the program gives its ranks. */
export interface Job {
  readonly settings: Settings;
  /** For what they find. */
  readonly directory: string;
  /** The work of rank 0, which reports how far it is. */
  readonly totalWork: WorkUnits;
}

/** The report of one rank; its tensors lie beside, one file each. */
export interface RankReport {
  readonly rank: number;
  /** Its place in the mesh. */
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

/** Results by name, each [H,S,D]: out; with gradients dq, dk and dv too. */
export type Results = Readonly<Record<string, Float32Array>>;

/** Leaves a rank's findings in the job's directory. */
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

/** What one run of the program does. */
export interface Settings {
  /** Length of the sequence; beyond the genome's 48 502 bases it is repeated. */
  readonly tokens: number;
  readonly ranks: number;
  /** Where ranks, and the one device that they are compared with, compute. */
  readonly device?: DeviceName;
  readonly backend: string;
  /** How the ranks are arranged, for backends with two dimensions; what these are is for the backend to define. */
  readonly shape?: GridShape;
  /** Remote stages of flex, if they are not to be chosen. */
  readonly stages?: number;
  readonly mask: MaskChoice;
  /** How the sequence is cut: by name, or "dispatch", as suits the mask. */
  readonly placement: PlacementChoice;
  readonly dtype: "float32" | "bfloat16" | "float16";
  readonly backward: boolean;
  readonly numHeads: number;
  /** Size of one head. */
  readonly headDim: number;
  readonly seed: number;
  readonly json: boolean;
  /** Where the picture goes; empty for none. */
  readonly svgPath: string;
  /** Where a picture of load and transfers goes, equal pieces beside the placement that is used; empty for none. */
  readonly dispatchPicturePath: string;
  /** Where a picture of the prediction beside the measurement goes; empty for none. */
  readonly predictionPicturePath: string;
  /** Where a page of all that goes, with tiles, bytes by link and load; empty for none. */
  readonly htmlPath: string;
  /** The machine, if it was measured: for `auto`, and to predict. */
  readonly profile?: Profile;
}

/** Whether something is to be predicted, so that this machine has to be measured; which is its processor. */
export function needsProfile({ backend, predictionPicturePath }: Settings): boolean {
  return backend === "auto" || predictionPicturePath !== "";
}

/** The masks that this program offers. */
export const maskNames = ["full", "causal", "documents", "window", "block-causal"] as const;
export type MaskName = (typeof maskNames)[number];

/** What each position sees: a mask's name, with its number where it has one. */
export interface MaskChoice {
  readonly name: MaskName;
  readonly argument?: number;
}

/** The placements that this program offers. */
export const placementNames = ["contiguous", "zigzag", "striped", "dispatch"] as const;
export type PlacementChoice = (typeof placementNames)[number];

/** Ranks in two dimensions. */
export type GridShape = readonly [number, number];

/** All shapes of so many ranks, the most nearly square first, and of two such the wider. */
export function gridShapes(ranks: number): readonly GridShape[] {
  const shapes: GridShape[] = [];
  for (let rows = 1; rows <= ranks; rows++) if (ranks % rows === 0) shapes.push([rows, ranks / rows]);
  return shapes.toSorted((a, b) => Math.max(...a) - Math.max(...b) || a[0] - b[0]);
}

/** "2x4" as a shape; undefined if it is none. */
export function parseGridShape(text: string): GridShape | undefined {
  const shapeMatch = /^([1-9]\d?)[x×]([1-9]\d?)$/.exec(text);
  return shapeMatch ? [Number(shapeMatch[1]), Number(shapeMatch[2])] : undefined;
}
