import { Random } from "./random.ts";
import type { Table } from "./datasets.ts";

// The prior: what tables look like before any was seen. A table is drawn from one of three families of mechanisms, its
// columns are bent and some made coarse, and its class is a noisy threshold (Müller et al. 2022; Hollmann et al. 2023).

/** Rows and columns of a synthetic table. */
export interface TableSize {
  readonly rows: number;
  readonly columns: number;
}

/** Features and a score, whose threshold is the class. */
interface SyntheticTable {
  /** By row. */
  readonly features: readonly Float64Array[];
  readonly scores: Float64Array;
}

/** A table that depends on `random` alone. Both classes occur. */
export function sampleTable(random: Random, size: TableSize): Table {
  const synthetic = random.choice([neuralNetworkTable, linearTable, treeTable])(random, size);
  const { scores } = synthetic;
  const noise = random.uniform() ** 2 * standardDeviation(scores);
  const noisy = scores.map((score) => score + noise * random.normal());
  // Among the middle six tenths, so that neither class is rare.
  const threshold = noisy.toSorted()[Math.floor(size.rows * (0.2 + 0.6 * random.uniform()))]!;
  const labels = Uint8Array.from(noisy, (score) => (score > threshold ? 1 : 0));
  labels[0] = 0;
  labels[1] = 1;
  const features = new Float32Array(size.rows * size.columns);
  for (let column = 0; column < size.columns; column++) {
    const transform = randomMonotoneFunction(random);
    for (const [row, values] of synthetic.features.entries())
      features[row * size.columns + column] = transform(values[column]!);
  }
  const columns = Array.from({ length: size.columns }, (_, i) => `x${i}`);
  return { name: "synthetic", columns, features, labels };
}

/** Features and score are nodes of one random network, as effects of the same causes. */
function neuralNetworkTable(random: Random, { rows, columns }: TableSize): SyntheticTable {
  const causes = random.integer(1, 6);
  const hidden = random.integer(columns + 1, 2 * columns + 8);
  const activation = random.choice([Math.tanh, (x: number) => Math.max(0, x), Math.sin, (x: number) => x]);
  const first = randomMatrix(random, hidden, causes);
  const second = randomMatrix(random, hidden, hidden);
  const chosen = random.permutation(2 * hidden).slice(0, columns + 1);
  const noise = 0.3 * random.uniform();
  const nodes = Array.from({ length: rows }, () => {
    const cause = Float64Array.from({ length: causes }, () => random.normal());
    const below = matrixVector(first, cause).map((x) => activation(x) + noise * random.normal());
    const above = matrixVector(second, below).map((x) => activation(x) + noise * random.normal());
    const all = [...below, ...above];
    return Float64Array.from(chosen, (node) => all[node]!);
  });
  return {
    features: nodes.map((node) => node.subarray(0, columns)),
    scores: Float64Array.from(nodes, (node) => node[columns]!),
  };
}

/** Correlated features, of which the score is a sum. */
function linearTable(random: Random, { rows, columns }: TableSize): SyntheticTable {
  const mixing = randomMatrix(random, columns, columns);
  const weights = Float64Array.from({ length: columns }, () => (random.uniform() < 0.3 ? 0 : random.normal()));
  const strength = random.uniform();
  const features = Array.from({ length: rows }, () => {
    const own = Float64Array.from({ length: columns }, () => random.normal());
    const mixed = matrixVector(mixing, own);
    return own.map((x, i) => (1 - strength) * x + strength * mixed[i]!);
  });
  return {
    features,
    scores: Float64Array.from(features, (x) => x.reduce((sum, value, i) => sum + value * weights[i]!, 0)),
  };
}

/** Independent features; the score is what the leaf of a random tree gives, or the sum of a few trees. */
function treeTable(random: Random, { rows, columns }: TableSize): SyntheticTable {
  const trees = Array.from({ length: random.integer(1, 4) }, () => {
    const depth = random.integer(1, 4);
    const nodes = Array.from({ length: 2 ** depth - 1 }, () => {
      return { column: random.integer(0, columns - 1), at: random.normal() };
    });
    const leaves = Array.from({ length: 2 ** depth }, () => random.normal());
    return { nodes, leaves };
  });
  const features = Array.from({ length: rows }, () => Float64Array.from({ length: columns }, () => random.normal()));
  const scores = Float64Array.from(features, (x) => {
    return trees.reduce((sum, { nodes, leaves }) => {
      let node = 0;
      while (node < nodes.length) node = 2 * node + (x[nodes[node]!.column]! > nodes[node]!.at ? 2 : 1);
      return sum + leaves[node - nodes.length]!;
    }, 0);
  });
  return { features, scores };
}

/** A monotone curve, or steps: measures come in any unit, and counts are coarse. */
function randomMonotoneFunction(random: Random): (x: number) => number {
  const scale = Math.exp(random.normal());
  const shift = random.normal();
  const kind = random.uniform();
  if (kind < 0.5) return (x) => scale * x + shift;
  if (kind < 0.65) return (x) => Math.exp(Math.min(3, 0.7 * x));
  if (kind < 0.8) return (x) => x * Math.abs(x);
  const steps = random.integer(2, 8);
  return (x) => Math.round(Math.max(-2, Math.min(2, x)) * (steps / 4));
}

function randomMatrix(random: Random, rows: number, columns: number): readonly Float64Array[] {
  const scale = 1 / Math.sqrt(columns);
  return Array.from({ length: rows }, () =>
    Float64Array.from({ length: columns }, () => 1.5 * scale * random.normal()),
  );
}

function matrixVector(by: readonly Float64Array[], x: Float64Array): Float64Array {
  return Float64Array.from(by, (row) => {
    let sum = 0;
    for (let i = 0; i < x.length; i++) sum += row[i]! * x[i]!;
    return sum;
  });
}

function standardDeviation(values: Float64Array): number {
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  return Math.sqrt(values.reduce((sum, x) => sum + (x - mean) ** 2, 0) / values.length);
}
