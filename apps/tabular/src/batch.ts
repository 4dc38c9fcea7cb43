import { contiguous, type Context, fromArray, type Tensor } from "@mosaic/attention";
import type { Batch } from "./model.ts";
import { countRows, standardize, type Table } from "./datasets.ts";

/** A rank's contiguous range of rows: `count` rows from `first` on. */
export interface RowRange {
  readonly first: number;
  readonly count: number;
}

/** Returns a rank's even share of `total` rows. Shares of the first ranks may be longer by one. */
function balancedRange(total: number, rank: number, ranks: number): RowRange {
  const [span] = contiguous().spans(rank, ranks, total);
  return { first: span!.start, count: span!.length };
}

/** Rows of a table that a rank holds. Known rows come first in the table and on every rank. */
export interface RowAssignment {
  readonly trainRows: RowRange;
  readonly testRows: RowRange;
}

/** Returns the rows of rank `rank` of `ranks`. Each rank holds an even share of all rows and of the known rows. */
export function assignRows(
  rows: number,
  knownRows: number,
  { rank, ranks }: { rank: number; ranks: number },
): RowAssignment {
  const countTestRows = (rankIndex: number): number =>
    balancedRange(rows, rankIndex, ranks).count - balancedRange(knownRows, rankIndex, ranks).count;
  const numPrecedingTestRows = Array.from({ length: rank }, (_, rankIndex) => countTestRows(rankIndex)).reduce(
    (a, b) => a + b,
    0,
  );
  return {
    trainRows: balancedRange(knownRows, rank, ranks),
    testRows: { first: knownRows + numPrecedingTestRows, count: countTestRows(rank) },
  };
}

/** Tables of one size on the device, with the target classes [B, target rows of this rank]. */
export interface LoadedBatch extends Batch, Disposable {
  readonly targets: Tensor;
}

/**
 * Options of a batch. The first `knownRows` rows of each table are known, and a rank holds the rows of `assignment`.
 */
export interface BatchOptions {
  readonly knownRows: number;
  readonly maxClasses: number;
  readonly assignment: RowAssignment;
}

/** Copies this rank's rows of `tables` to the device. All tables must have the same size and number of classes. */
export function loadBatch(ctx: Context, tables: readonly Table[], options: BatchOptions): LoadedBatch {
  const { knownRows, maxClasses, assignment } = options;
  const rows = countRows(tables[0]!);
  const width = tables[0]!.columns.length;
  const { trainRows, testRows } = assignment;
  const numLocalRows = trainRows.count + testRows.count;
  const features = new Float32Array(tables.length * numLocalRows * width);
  const classes = new Float32Array(tables.length * numLocalRows * maxClasses);
  const targets = new Float32Array(tables.length * testRows.count);
  for (const [i, table] of tables.entries()) {
    const standardizedTable = standardize(table, knownRows);
    for (const [rowRange, outRow] of [
      [trainRows, 0],
      [testRows, trainRows.count],
    ] as const) {
      const cells = standardizedTable.subarray(rowRange.first * width, (rowRange.first + rowRange.count) * width);
      features.set(cells, (i * numLocalRows + outRow) * width);
    }
    const trainLabels = table.labels.subarray(trainRows.first, trainRows.first + trainRows.count);
    for (const [row, label] of trainLabels.entries()) classes[(i * numLocalRows + row) * maxClasses + label] = 1;
    const classShares = new Float32Array(maxClasses);
    for (const label of table.labels.subarray(0, knownRows)) classShares[label]! += 1 / knownRows;
    for (let row = trainRows.count; row < numLocalRows; row++)
      classes.set(classShares, (i * numLocalRows + row) * maxClasses);
    targets.set(table.labels.subarray(testRows.first, testRows.first + testRows.count), i * testRows.count);
  }
  const batchTensors = {
    features: fromArray(ctx, features, [tables.length, numLocalRows, width]),
    classes: fromArray(ctx, classes, [tables.length, numLocalRows, maxClasses]),
    targets: fromArray(ctx, targets, [tables.length, testRows.count]),
  };
  return {
    ...batchTensors,
    classCount: tables[0]!.classes.length,
    knownRowCounts: { localCount: trainRows.count, globalCount: knownRows },
    rows,
    [Symbol.dispose]() {
      for (const tensor of Object.values(batchTensors)) tensor.dispose();
    },
  };
}
