// Baselines with which the model is compared. Features are standardized, and row-major with `width` columns.

/** A task: rows with known classes, and rows to be predicted. */
export interface ClassificationTask {
  readonly width: number;
  /** Classes are 0 … classCount − 1. */
  readonly classCount: number;
  readonly trainFeatures: Float32Array;
  readonly labels: Uint8Array;
  readonly testFeatures: Float32Array;
}

/** Probabilities, [test rows × classes]. */
export type Probabilities = Float64Array;

/**
 * Predicts by multinomial logistic regression with a small L2 penalty (½ |w|², without intercepts), by Newton's method.
 * For two classes it is equivalent to binary logistic regression with one weight vector. Hastie, Tibshirani and
 * Friedman 2009, §4.4.
 */
export function logisticRegression({
  width,
  classCount,
  trainFeatures,
  labels,
  testFeatures,
}: ClassificationTask): Probabilities {
  const weightsPerClass = width + 1;
  // Two vectors w and −w with a penalty of 1 each are equivalent to one vector 2 w with a penalty of ½.
  const penalty = classCount === 2 ? 2 : 1;
  const weights = new Float64Array(classCount * weightsPerClass);
  const rows = Array.from(labels, (_, row) => appendBias(trainFeatures, row, width));
  for (let step = 0; step < 50; step++) {
    const gradient = new Float64Array(classCount * weightsPerClass);
    const hessian = Array.from(
      { length: classCount * weightsPerClass },
      () => new Float64Array(classCount * weightsPerClass),
    );
    for (const [row, x] of rows.entries()) {
      const p = classProbabilities(weights, x);
      for (let a = 0; a < classCount; a++) {
        addScaled(
          gradient.subarray(a * weightsPerClass, (a + 1) * weightsPerClass),
          p[a]! - (labels[row] === a ? 1 : 0),
          x,
        );
        for (let b = 0; b <= a; b++) {
          addOuterProduct(hessian, {
            topLeft: [a * weightsPerClass, b * weightsPerClass],
            factor: p[a]! * ((a === b ? 1 : 0) - p[b]!),
            x,
          });
        }
      }
    }
    // The matrix is symmetric: copy the lower triangle to the upper one.
    for (const [i, values] of hessian.entries()) for (let j = 0; j < i; j++) hessian[j]![i] = values[j]!;
    for (const [i, weight] of weights.entries()) {
      const isPenalized = i % weightsPerClass < width;
      gradient[i]! += isPenalized ? penalty * weight : 0;
      hessian[i]![i]! += isPenalized ? penalty : 1e-6;
    }
    const update = solve(hessian, gradient);
    addScaled(weights, -1, update);
    if (Math.max(...update.map(Math.abs)) < 1e-9) break;
  }
  return mapRows(testFeatures.length / width, classCount, (row) =>
    classProbabilities(weights, appendBias(testFeatures, row, width)),
  );
}

/** Returns the shares of the classes among the k nearest rows by Euclidean distance. Cover and Hart 1967. */
export function nearestNeighbors(task: ClassificationTask, k = 15): Probabilities {
  const { width, classCount, trainFeatures, labels, testFeatures } = task;
  const numNeighbors = Math.min(k, labels.length);
  return mapRows(testFeatures.length / width, classCount, (row) => {
    const distances = Array.from(labels, (label, trainRow) => {
      let squaredDistance = 0;
      for (let i = 0; i < width; i++)
        squaredDistance += (testFeatures[row * width + i]! - trainFeatures[trainRow * width + i]!) ** 2;
      return { squaredDistance, label };
    });
    const classShares = new Float64Array(classCount);
    for (const { label } of distances.toSorted((a, b) => a.squaredDistance - b.squaredDistance).slice(0, numNeighbors))
      classShares[label]! += 1 / numNeighbors;
    return classShares;
  });
}

/**
 * Returns the ROC AUC of probabilities [rows × classes]. For two classes, it is that of class 1. For more classes, it
 * is the mean over each class against all others, as with scikit-learn's `multi_class="ovr"`.
 */
export function multiclassAuc(labels: ArrayLike<number>, probabilities: Probabilities, classCount: number): number {
  const classes = classCount === 2 ? [1] : Array.from({ length: classCount }, (_, i) => i);
  const classAucs = classes.map((positiveClass) => {
    const scores = Array.from(labels, (_, row) => probabilities[row * classCount + positiveClass]!);
    return rocAuc(
      Array.from(labels, (label) => (label === positiveClass ? 1 : 0)),
      scores,
    );
  });
  return classAucs.reduce((a, b) => a + b, 0) / classAucs.length;
}

/**
 * Returns the area under the ROC curve: the probability that a row of class 1 has a higher score than a row of class 0,
 * with ties counted half (Hanley and McNeil 1982). NaN if there is only one class, or if a score is NaN.
 */
export function rocAuc(labels: ArrayLike<number>, scores: ArrayLike<number>): number {
  if (Array.from(scores).some(Number.isNaN)) return Number.NaN;
  const order = Array.from(scores, (_, i) => i).toSorted((a, b) => scores[a]! - scores[b]!);
  let [numPositives, rankSum] = [0, 0];
  for (let tieStart = 0; tieStart < order.length; ) {
    let end = tieStart;
    while (end < order.length && scores[order[end]!] === scores[order[tieStart]!]) end++;
    for (let i = tieStart; i < end; i++) {
      if (labels[order[i]!] !== 1) continue;
      numPositives++;
      rankSum += (tieStart + 1 + end) / 2; // ties share their mean rank
    }
    tieStart = end;
  }
  return (rankSum - (numPositives * (numPositives + 1)) / 2) / (numPositives * (order.length - numPositives));
}

function appendBias(rows: Float32Array, row: number, width: number): Float64Array {
  const x = new Float64Array(width + 1);
  x.set(rows.subarray(row * width, (row + 1) * width));
  x[width] = 1;
  return x;
}

/** Returns the probabilities of all classes for x, given the weights of each class. */
function classProbabilities(weights: Float64Array, x: Float64Array): Float64Array {
  const scores = Float64Array.from({ length: weights.length / x.length }, (_, label) => {
    let sum = 0;
    for (let i = 0; i < x.length; i++) sum += weights[label * x.length + i]! * x[i]!;
    return sum;
  });
  const maxScore = Math.max(...scores);
  const exponentials = scores.map((score) => Math.exp(score - maxScore));
  const total = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((exponential) => exponential / total);
}

interface OuterProduct {
  readonly topLeft: readonly [row: number, column: number];
  readonly factor: number;
  readonly x: Float64Array;
}

/** Computes matrix += factor · x xᵀ on the block that begins at `topLeft`. */
function addOuterProduct(matrix: readonly Float64Array[], { topLeft: [top, left], factor, x }: OuterProduct): void {
  for (let i = 0; i < x.length; i++) {
    const values = matrix[top + i]!;
    const scale = factor * x[i]!;
    for (let j = 0; j < x.length; j++) values[left + j]! += scale * x[j]!;
  }
}

function addScaled(out: Float64Array, factor: number, x: Float64Array): void {
  for (let i = 0; i < x.length; i++) out[i]! += factor * x[i]!;
}

function mapRows(rows: number, width: number, computeRow: (row: number) => Float64Array): Float64Array {
  const out = new Float64Array(rows * width);
  for (let row = 0; row < rows; row++) out.set(computeRow(row), row * width);
  return out;
}

/** Solves a linear system by Gaussian elimination with partial pivoting. */
function solve(matrix: readonly Float64Array[], rightHandSide: Float64Array): Float64Array {
  const rows = matrix.map((row, i) => Float64Array.from([...row, rightHandSide[i]!]));
  const size = rows.length;
  for (let column = 0; column < size; column++) {
    let pivot = column;
    for (let i = column + 1; i < size; i++) {
      if (Math.abs(rows[i]![column]!) > Math.abs(rows[pivot]![column]!)) pivot = i;
    }
    [rows[column], rows[pivot]] = [rows[pivot]!, rows[column]!];
    for (let i = 0; i < size; i++) {
      if (i === column) continue;
      const factor = rows[i]![column]! / rows[column]![column]!;
      for (let j = column; j <= size; j++) rows[i]![j]! -= factor * rows[column]![j]!;
    }
  }
  return Float64Array.from(rows, (row, i) => row[size]! / row[i]!);
}
