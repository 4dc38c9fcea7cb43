// What the model is measured against. Features come standardized, row-major with `width` columns.

/** A task: rows with known classes, and rows to be predicted. */
export interface ClassificationTask {
  readonly width: number;
  readonly train: Float32Array;
  readonly labels: Uint8Array;
  readonly test: Float32Array;
}

/**
 * Logistic regression with a little L2 (1 on weights, none on the intercept), by Newton's method; probabilities of class 1.
 * Hastie, Tibshirani and Friedman 2009, §4.4.1.
 */
export function logisticRegression({ width, train, labels, test }: ClassificationTask, penalty = 1): Float64Array {
  const size = width + 1;
  const weights = new Float64Array(size);
  for (let step = 0; step < 50; step++) {
    const gradient = new Float64Array(size);
    const hessian = Array.from({ length: size }, () => new Float64Array(size));
    for (const [row, label] of labels.entries()) {
      const x = withBias(train, row, width);
      const p = sigmoid(dot(weights, x));
      for (let i = 0; i < size; i++) {
        gradient[i]! += (p - label) * x[i]!;
        for (let j = 0; j < size; j++) hessian[i]![j]! += p * (1 - p) * x[i]! * x[j]!;
      }
    }
    for (let i = 0; i < size; i++) {
      gradient[i]! += i < width ? penalty * weights[i]! : 0;
      hessian[i]![i]! += i < width ? penalty : 1e-9;
    }
    const change = solve(hessian, gradient);
    for (let i = 0; i < size; i++) weights[i]! -= change[i]!;
    if (Math.max(...change.map(Math.abs)) < 1e-9) break;
  }
  return Float64Array.from({ length: test.length / width }, (_, row) =>
    sigmoid(dot(weights, withBias(test, row, width))),
  );
}

/** The share of class 1 among the k nearest rows by Euclidean distance. Cover and Hart 1967. */
export function nearestNeighbours({ width, train, labels, test }: ClassificationTask, k = 15): Float64Array {
  const count = Math.min(k, labels.length);
  return Float64Array.from({ length: test.length / width }, (_, row) => {
    const distances = Array.from(labels, (label, other) => {
      let sum = 0;
      for (let i = 0; i < width; i++) sum += (test[row * width + i]! - train[other * width + i]!) ** 2;
      return { sum, label };
    });
    const nearest = distances.toSorted((a, b) => a.sum - b.sum).slice(0, count);
    return nearest.reduce((ones, { label }) => ones + label, 0) / count;
  });
}

/**
 * Area under the ROC curve: how probably a row of class 1 scores above one of class 0, ties half (Hanley and McNeil 1982).
 * NaN if there is only one class.
 */
export function rocAuc(labels: ArrayLike<number>, scores: ArrayLike<number>): number {
  const order = Array.from(scores, (_, i) => i).toSorted((a, b) => scores[a]! - scores[b]!);
  let [ones, rankSum] = [0, 0];
  for (let first = 0; first < order.length; ) {
    let end = first;
    while (end < order.length && scores[order[end]!] === scores[order[first]!]) end++;
    for (let i = first; i < end; i++) {
      if (labels[order[i]!] !== 1) continue;
      ones++;
      rankSum += (first + 1 + end) / 2; // ties share their mean rank
    }
    first = end;
  }
  return (rankSum - (ones * (ones + 1)) / 2) / (ones * (order.length - ones));
}

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));

function withBias(rows: Float32Array, row: number, width: number): Float64Array {
  const x = new Float64Array(width + 1);
  x.set(rows.subarray(row * width, (row + 1) * width));
  x[width] = 1;
  return x;
}

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!;
  return sum;
}

/** Gaussian elimination with partial pivoting. */
function solve(matrix: readonly Float64Array[], right: Float64Array): Float64Array {
  const rows = matrix.map((row, i) => Float64Array.from([...row, right[i]!]));
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
