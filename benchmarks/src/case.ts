/** Longer than idle threads of OpenMP or of Mosaic wait for work before they sleep. */
const IDLE_MILLISECONDS = 250;

/** Leaves the cores idle before the next measurement. */
export function waitUntilIdle(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, IDLE_MILLISECONDS));
}

/** Result of one case: numbers for `--json`, and a sentence to print. */
export interface ResultRow {
  readonly case: string;
  readonly numbers: Readonly<Record<string, number>>;
  readonly text: string;
}

/** Effort of a measurement. The machine is noisy, so more repetitions include more of its quiet periods. */
export interface MeasurementOptions {
  readonly repetitions: number;
  /** A Python interpreter with PyTorch. */
  readonly python?: string | undefined;
}

/** A benchmark case. One run may give several rows, but `names` lists all of them in advance. */
export interface BenchmarkCase {
  readonly names: readonly string[];
  run(effort: MeasurementOptions): Promise<readonly ResultRow[]>;
}

/** Returns seconds of CLOCK_MONOTONIC, which all processes of a host share. */
export const now = (): number => Number(process.hrtime.bigint()) / 1e9;

export function median(values: readonly number[]): number {
  const sortedValues = values.toSorted((a, b) => a - b);
  const middleIndex = Math.floor(sortedValues.length / 2);
  return sortedValues.length % 2 === 1
    ? sortedValues[middleIndex]!
    : (sortedValues[middleIndex - 1]! + sortedValues[middleIndex]!) / 2;
}
