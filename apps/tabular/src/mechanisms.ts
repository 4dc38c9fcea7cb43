import type { Random } from "./random.ts";

// Mechanisms that generate the columns of a synthetic table: random causes and effects (Müller et al. 2022; Hollmann et
// al. 2023).

/** Number of rows and feature columns of a table, and number of scores from which its classes are derived. */
export interface MechanismSize {
  readonly rows: number;
  readonly columns: number;
  readonly scores: number;
}

/** Result of a mechanism for one row. */
export interface Sample {
  readonly features: Float64Array;
  readonly scores: Float64Array;
}

/** A family of tables. Returns one table of the family, which depends on `random` only. */
export type Mechanism = (random: Random, size: MechanismSize) => readonly Sample[];

const activations: readonly ((x: number) => number)[] = [
  Math.tanh,
  (x) => Math.max(0, x),
  Math.sin,
  (x) => x,
  Math.abs,
  (x) => Math.exp(-x * x),
];

/** Features and scores are nodes of one random network: effects of the same causes, some of which are categorical. */
export const sampleNetworkTable: Mechanism = (random, { rows, columns, scores }) => {
  const numCauses = random.integer(1, 6);
  const numHiddenNodes = random.integer(columns + 2, 2 * columns + 8);
  const layers = Array.from({ length: random.integer(1, 3) }, (_, i) => {
    return {
      weights: randomMatrix(random, numHiddenNodes, i === 0 ? numCauses : numHiddenNodes),
      activation: random.choice(activations),
    };
  });
  const featureNodes = random.permutation(layers.length * numHiddenNodes).slice(0, columns);
  const outputWeights = randomMatrix(random, scores, numHiddenNodes);
  // A score is one node of the last layer, or a mixture of its nodes.
  const usesHiddenNode = random.uniform() < 0.5 && scores <= numHiddenNodes;
  const scoreNodes = random.permutation(numHiddenNodes);
  const noiseStd = 0.4 * random.uniform();
  const drawCauses = createCauseSampler(random, numCauses);
  return Array.from({ length: rows }, () => {
    let values = drawCauses();
    const allNodeValues: number[] = [];
    for (const { weights, activation } of layers) {
      values = matrixVectorProduct(weights, values).map((x) => activation(x) + noiseStd * random.normal());
      allNodeValues.push(...values);
    }
    const lastLayerValues = values;
    return {
      features: Float64Array.from(featureNodes, (node) => allNodeValues[node]!),
      scores: usesHiddenNode
        ? Float64Array.from({ length: scores }, (_, i) => lastLayerValues[scoreNodes[i]!]!)
        : matrixVectorProduct(outputWeights, lastLayerValues),
    };
  });
};

/** Returns a sampler of causes that are normally distributed, or clustered around a few centers. */
function createCauseSampler(random: Random, numCauses: number): () => Float64Array {
  if (random.uniform() < 0.6) return () => Float64Array.from({ length: numCauses }, () => random.normal());
  const centers = randomMatrix(random, random.integer(2, 5), numCauses, 2);
  const clusterStd = 0.2 + 0.8 * random.uniform();
  return () => random.choice(centers).map((center) => center + clusterStd * random.normal());
}

/** Features are correlated, and scores are weighted sums of them. */
export const sampleLinearTable: Mechanism = (random, { rows, columns, scores }) => {
  const drawRow = createFeatureSampler(random, columns);
  const weights = sparseMatrix(random, scores, columns);
  return Array.from({ length: rows }, () => {
    const features = drawRow();
    return { features, scores: matrixVectorProduct(weights, features) };
  });
};

/**
 * Rows belong to groups, each with its own center. Scores depend on a row's deviation from the center and on its group.
 */
export const sampleGroupTable: Mechanism = (random, { rows, columns, scores }) => {
  const numGroups = random.integer(2, 5);
  const distance = 0.5 + 2.5 * random.uniform();
  const centers = randomMatrix(random, numGroups, columns, distance * Math.sqrt(columns));
  const drawRow = createFeatureSampler(random, columns);
  const weights = sparseMatrix(random, scores, columns);
  const offsetShare = random.uniform();
  const offsets = Array.from({ length: numGroups }, () =>
    Float64Array.from({ length: scores }, () => 2 * random.normal()),
  );
  return Array.from({ length: rows }, () => {
    const groupIndex = random.integer(0, numGroups - 1);
    const rowFeatures = drawRow();
    return {
      features: rowFeatures.map((x, i) => x + centers[groupIndex]![i]!),
      scores: matrixVectorProduct(weights, rowFeatures).map(
        (x, i) => (1 - offsetShare) * x + offsetShare * offsets[groupIndex]![i]!,
      ),
    };
  });
};

/** Scores are sums of leaf values of random trees. */
export const sampleTreeTable: Mechanism = (random, { rows, columns, scores }) => {
  const drawRow = createFeatureSampler(random, columns);
  const treeEnsembles = Array.from({ length: scores }, () => createTreeEnsemble(random, columns));
  return Array.from({ length: rows }, () => {
    const features = drawRow();
    return { features, scores: Float64Array.from(treeEnsembles, (treeEnsemble) => treeEnsemble(features)) };
  });
};

function createTreeEnsemble(random: Random, columns: number): (x: Float64Array) => number {
  const trees = Array.from({ length: random.integer(1, 6) }, () => {
    const depth = random.integer(1, 4);
    const nodes = Array.from({ length: 2 ** depth - 1 }, () => {
      return { column: random.integer(0, columns - 1), threshold: random.normal() };
    });
    return { nodes, leaves: Array.from({ length: 2 ** depth }, () => random.normal()) };
  });
  return (x) =>
    trees.reduce((sum, { nodes, leaves }) => {
      let nodeIndex = 0;
      while (nodeIndex < nodes.length)
        nodeIndex = 2 * nodeIndex + (x[nodes[nodeIndex]!.column]! > nodes[nodeIndex]!.threshold ? 2 : 1);
      return sum + leaves[nodeIndex - nodes.length]!;
    }, 0);
}

/** Returns a sampler of normally distributed features, independent or correlated. */
function createFeatureSampler(random: Random, columns: number): () => Float64Array {
  const correlationStrength = random.uniform() < 0.2 ? 0 : random.uniform();
  // With few causes, all columns are strongly correlated.
  const numCauses = random.integer(1, columns);
  const mixingMatrix = randomMatrix(random, columns, numCauses);
  return () => {
    const correlatedValues = matrixVectorProduct(
      mixingMatrix,
      Float64Array.from({ length: numCauses }, () => random.normal()),
    );
    return correlatedValues.map((x) => correlationStrength * x + (1 - correlationStrength) * random.normal());
  };
}

/** Returns normally distributed weights, some of which are 0. */
function sparseMatrix(random: Random, rows: number, columns: number): readonly Float64Array[] {
  const zeroShare = 0.6 * random.uniform();
  return Array.from({ length: rows }, () =>
    Float64Array.from({ length: columns }, () => (random.uniform() < zeroShare ? 0 : random.normal())),
  );
}

function randomMatrix(random: Random, rows: number, columns: number, gain = 1.5): readonly Float64Array[] {
  const scale = gain / Math.sqrt(columns);
  return Array.from({ length: rows }, () => Float64Array.from({ length: columns }, () => scale * random.normal()));
}

function matrixVectorProduct(matrix: readonly Float64Array[], x: Float64Array): Float64Array {
  return Float64Array.from(matrix, (row) => {
    let sum = 0;
    for (let i = 0; i < x.length; i++) sum += row[i]! * x[i]!;
    return sum;
  });
}
