/** Longer than threads of an idle OpenMP or of ours wait for more work before they sleep. */
const IDLE_MILLISECONDS = 250;

/** Leaves the cores idle before the next measurement. */
export function waitUntilIdle(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, IDLE_MILLISECONDS));
}

/** What one case found: numbers for `--json`, a sentence for people. */
export interface ResultRow {
  readonly case: string;
  readonly numbers: Readonly<Record<string, number>>;
  readonly text: string;
}

/** How hard to try: the machine is noisy, and more repetitions see more of its quiet moments. */
export interface MeasurementOptions {
  readonly repetitions: number;
  /** A Python that has PyTorch. */
  readonly python?: string | undefined;
}

/** Something to measure. One run may give several rows, but all their names are known before. */
export interface BenchmarkCase {
  readonly names: readonly string[];
  run(effort: MeasurementOptions): Promise<readonly ResultRow[]>;
}

/** Seconds of CLOCK_MONOTONIC, which all processes of a host share. */
export const now = (): number => Number(process.hrtime.bigint()) / 1e9;

export function median(values: readonly number[]): number {
  const sortedValues = values.toSorted((a, b) => a - b);
  const middleIndex = Math.floor(sortedValues.length / 2);
  return sortedValues.length % 2 === 1
    ? sortedValues[middleIndex]!
    : (sortedValues[middleIndex - 1]! + sortedValues[middleIndex]!) / 2;
}
