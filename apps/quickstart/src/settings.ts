import type { DeviceName } from "@mosaic/attention";
import type { Profile } from "@mosaic/attention/planner";

/** What one run of the program does. */
export interface Settings {
  /** Length of the sequence; beyond the genome's 48 502 bases it is repeated. */
  readonly tokens: number;
  readonly ranks: number;
  /** Where ranks, and the one device that they are compared with, compute. */
  readonly device?: DeviceName;
  readonly backend: string;
  /** How the ranks are arranged, for backends with two dimensions; what these are is for the backend to define. */
  readonly shape?: Shape;
  readonly causal: boolean;
  readonly dtype: "float32" | "bfloat16" | "float16";
  readonly backward: boolean;
  readonly numHeads: number;
  /** Size of one head. */
  readonly dim: number;
  readonly seed: number;
  readonly json: boolean;
  /** Where the picture goes; empty for none. */
  readonly svg: string;
  /** Where a picture of what was predicted beside what was measured goes; empty for none. */
  readonly predict: string;
  /** The machine, if it was measured: for `auto`, and to predict. */
  readonly profile?: Profile;
}

/** Whether something is to be predicted, so that this machine has to be measured; which is its processor. */
export function needsProfile({ backend, predict }: Settings): boolean {
  return backend === "auto" || predict !== "";
}

/** Ranks in two dimensions. */
export type Shape = readonly [number, number];

/** All shapes of so many ranks, the most nearly square first, and of two such the wider. */
export function gridShapes(ranks: number): readonly Shape[] {
  const shapes: Shape[] = [];
  for (let rows = 1; rows <= ranks; rows++) if (ranks % rows === 0) shapes.push([rows, ranks / rows]);
  return shapes.toSorted((a, b) => Math.max(...a) - Math.max(...b) || a[0] - b[0]);
}

/** "2x4" as a shape; undefined if it is none. */
export function parseShape(text: string): Shape | undefined {
  const found = /^([1-9]\d?)[x×]([1-9]\d?)$/.exec(text);
  return found ? [Number(found[1]), Number(found[2])] : undefined;
}
