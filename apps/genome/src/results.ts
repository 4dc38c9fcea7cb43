import { readFileSync, writeFileSync } from "node:fs";
import type { CurvePoint } from "./curve.ts";
import type { TopKRecall, RoutingMap } from "./evaluation.ts";
import type { Settings } from "./settings.ts";

/** Date and command that produced a result. */
interface Origin {
  readonly date: string;
  readonly command: string;
}

/** Training of one method: the evaluated steps of its curve and, for "meta", the recall of its router. */
export interface MethodResult {
  readonly name: string;
  readonly settings: Settings;
  readonly seconds: number;
  readonly curve: readonly CurvePoint[];
  readonly recall?: TopKRecall & { readonly chance: number };
}

/** Results of a comparison. */
export interface Comparison extends Origin {
  readonly methods: readonly MethodResult[];
  readonly map: RoutingMap;
}

/** Results of the planted task, with one training per seed. */
export interface PlantedResult extends Origin {
  readonly runs: readonly PlantedRun[];
}

export interface PlantedRun {
  readonly settings: Settings;
  readonly seconds: number;
  readonly curve: readonly Pick<CurvePoint, "step" | "loss" | "held">[];
  /** Recall over `pairs` held-out pairs. */
  readonly recall: number;
  readonly pairs: number;
  readonly chance: number;
  /** Mean cross-entropy of the masked bases. Guessing has ln 4. */
  readonly loss: number;
}

/** Folder of the results in this repository. */
export const RESULTS_URL: URL = new URL("../results/", import.meta.url);

export function writeResult(path: string | URL, result: Comparison | PlantedResult): void {
  writeFileSync(path, `${JSON.stringify(result)}\n`);
}

export function readResult<T extends Comparison | PlantedResult>(path: string | URL): T {
  return JSON.parse(readFileSync(path, "utf8")) as T;
}
