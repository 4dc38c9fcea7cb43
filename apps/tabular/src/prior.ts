import {
  sampleGroupTable,
  sampleLinearTable,
  type Mechanism,
  sampleNetworkTable,
  type Sample,
  sampleTreeTable,
} from "./mechanisms.ts";
import type { Random } from "./random.ts";
import type { Table } from "./datasets.ts";

// The prior distribution of tables. A mechanism generates features and scores. Columns are transformed nonlinearly,
// quantized or made categorical. Classes are noisy thresholds of one score, or the largest of several scores.

/** Number of rows, columns and classes of a synthetic table. */
export interface TableSize {
  readonly rows: number;
  readonly columns: number;
  readonly classes: number;
}

/** Mechanisms. The probability of each is proportional to the number of its entries. */
const mechanisms: readonly Mechanism[] = [
  ...[sampleNetworkTable, sampleNetworkTable],
  ...[sampleLinearTable, sampleLinearTable],
  ...[sampleGroupTable, sampleGroupTable],
  sampleTreeTable,
];

/** Generates a table, which depends on `random` only. At least two of its classes occur. */
export function sampleTable(random: Random, size: TableSize): Table {
  const { rows, columns, classes } = size;
  // With two classes, the larger of two scores is equivalent to a threshold of their difference.
  const usesArgmax = classes > 2 && random.uniform() < 0.6;
  const samples = random.choice(mechanisms)(random, { rows, columns, scores: usesArgmax ? classes : 1 });
  const noisyScores = addNoise(random, samples);
  const classIndices = usesArgmax
    ? noisyScores.map(argmax)
    : assignByThresholds(
        random,
        noisyScores.map((scores) => scores[0]!),
        classes,
      );
  const classNumbers = random.permutation(classes);
  const labels = Uint8Array.from(classIndices, (label) => classNumbers[label]!);
  if (labels.every((label) => label === labels[0])) labels[0] = (labels[0]! + 1) % classes;
  const features = new Float32Array(rows * columns);
  for (let column = 0; column < columns; column++) {
    const transform = drawFeatureTransform(random);
    for (const [row, sample] of samples.entries())
      features[row * columns + column] = transform(sample.features[column]!);
  }
  return {
    name: "synthetic",
    columns: Array.from({ length: columns }, (_, i) => `x${i}`),
    classes: Array.from({ length: classes }, (_, i) => i),
    features,
    labels,
  };
}

/** Standardizes scores and adds noise of one strength, so that similar rows may have different classes. */
function addNoise(random: Random, samples: readonly Sample[]): readonly Float64Array[] {
  const noiseStd = 1.5 * random.uniform() ** 2;
  const numScores = samples[0]!.scores.length;
  const scoreStatistics = Array.from({ length: numScores }, (_, i) => {
    const values = samples.map(({ scores }) => scores[i]!);
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const std = Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / values.length);
    return { mean, scale: 1 / (std + 1e-9) };
  });
  return samples.map(({ scores }) =>
    scores.map(
      (score, i) => (score - scoreStatistics[i]!.mean) * scoreStatistics[i]!.scale + noiseStd * random.normal(),
    ),
  );
}

const argmax = (scores: Float64Array): number => scores.indexOf(Math.max(...scores));

/** Divides the scores into `classes` intervals, none of which is very rare. Returns the interval of each score. */
function assignByThresholds(random: Random, scores: readonly number[], classes: number): readonly number[] {
  const sizes = Array.from({ length: classes }, () => 0.25 + random.uniform());
  const total = sizes.reduce((a, b) => a + b, 0);
  const sortedScores = scores.toSorted((a, b) => a - b);
  let sum = 0;
  const thresholds = sizes.slice(0, -1).map((size) => {
    sum += size;
    return sortedScores[Math.floor((scores.length * sum) / total)]!;
  });
  return scores.map((score) => thresholds.filter((threshold) => score >= threshold).length);
}

/** Returns a random transform of a column: linear, nonlinear, quantized, or categorical with arbitrary numbers. */
function drawFeatureTransform(random: Random): (x: number) => number {
  const scale = Math.exp(random.normal());
  const shift = random.normal();
  const kindDraw = random.uniform();
  if (kindDraw < 0.55) return (x) => scale * x + shift;
  if (kindDraw < 0.67) return (x) => Math.exp(Math.min(3, 0.7 * x));
  if (kindDraw < 0.77) return (x) => x * Math.abs(x);
  const numSteps = random.integer(2, 8);
  const quantize = (x: number): number => Math.round(Math.max(-2, Math.min(2, x)) * (numSteps / 4));
  if (kindDraw < 0.93) return quantize;
  const categoryNumbers = random.permutation(2 * numSteps + 3);
  return (x) => categoryNumbers[quantize(x) + numSteps + 1]!;
}
