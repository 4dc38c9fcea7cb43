import { readFileSync, writeFileSync } from "node:fs";
import type { CurvePoint } from "./curve.ts";
import type { MassRecall, RoutingMap } from "./evaluation.ts";
import type { Settings } from "./settings.ts";

/** How a result came about. */
interface Origin {
  readonly date: string;
  readonly command: string;
}

/** One method's training: the evaluated steps of its curve, and for "meta" how its router does. */
export interface MethodResult {
  readonly name: string;
  readonly settings: Settings;
  readonly seconds: number;
  readonly curve: readonly CurvePoint[];
  readonly recall?: MassRecall & { readonly chance: number };
}

/** What a comparison found. */
export interface Comparison extends Origin {
  readonly methods: readonly MethodResult[];
  readonly map: RoutingMap;
}

/** What the planted task found, one training a seed. */
export interface PlantedResult extends Origin {
  readonly runs: readonly PlantedRun[];
}

export interface PlantedRun {
  readonly settings: Settings;
  readonly seconds: number;
  readonly curve: readonly Pick<CurvePoint, "step" | "loss" | "held">[];
  /** Over so many held-out pairs. */
  readonly recall: number;
  readonly pairs: number;
  readonly chance: number;
  /** Mean cross-entropy of the hidden bases; ln 4 is guessing. */
  readonly loss: number;
}

/** Where results of this repository lie. */
export const RESULTS_URL: URL = new URL("../results/", import.meta.url);

export function writeResult(path: string | URL, result: Comparison | PlantedResult): void {
  writeFileSync(path, `${JSON.stringify(result)}\n`);
}

export function readResult<T extends Comparison | PlantedResult>(path: string | URL): T {
  return JSON.parse(readFileSync(path, "utf8")) as T;
}
