import { type Context, fromArray, ring } from "@mosaic/attention";
import { defineOptions, formatValue, MosaicError, option, type OptionsOf } from "@mosaic/attention/core";
import { assignRows, type RowAssignment } from "./batch.ts";
import { type ClassName, encodeLabels, type Table } from "./datasets.ts";
import { defaultOptions, type TabularModel } from "./model.ts";
import { predict } from "./predict.ts";
import { defaultWeightsPath, loadModel } from "./weights.ts";

export const tabularClassifierOptions = defineOptions("TabularClassifier", {
  /**
   * Number of ensemble members whose predictions are averaged. They differ in the numbering of classes, and in whether
   * columns are transformed by rank. Default 8.
   */
  ensembleSize: option.integer({ min: 1, default: 8 }),
  /** Random seed of the ensemble. Default 0. */
  seed: option.integer({ min: 0, max: 2 ** 32 - 1, default: 0 }),
  /** File with weights of a model of the default size. Default: the weights of this package. */
  weights: option.string({ optional: true }),
});
/** Options of TabularClassifier. */
export type TabularClassifierOptions = OptionsOf<typeof tabularClassifierOptions>;

/** Rows of features: a number in every cell, and equally many cells in every row. */
export type Rows = readonly ArrayLike<number>[];

/** The rows whose classes are known. */
interface KnownRows {
  readonly x: Rows;
  readonly width: number;
  readonly y: readonly ClassName[];
  readonly classes: readonly ClassName[];
}

/**
 * Classifier with the interface of scikit-learn. `fit` stores the rows whose classes are known, without training.
 * `predictProba` processes these rows and the rows to be predicted together, in one forward pass for each member of the
 * ensemble. There may be 2 to 10 classes, named by strings, numbers or booleans. Columns are numeric.
 *
 * On several ranks, all ranks must make the same calls with the same rows. Each computes its share of the rows, as a
 * ring along "sp", and receives all predictions.
 *
 * @throws MosaicError for invalid rows, cells or classes, with their position; OptionError for invalid options.
 */
export class TabularClassifier implements Disposable {
  readonly #ctx: Context;
  readonly #options: ReturnType<typeof tabularClassifierOptions.parse>;
  #model: TabularModel | undefined;
  #knownRows: KnownRows | undefined;

  constructor(ctx: Context, options?: TabularClassifierOptions) {
    this.#ctx = ctx;
    this.#options = tabularClassifierOptions.parse(options ?? {});
  }

  /** Names of the classes, in the order of the probabilities. */
  get classes(): readonly ClassName[] {
    return this.#requireFitted("classes").classes;
  }

  /** Stores the known rows x [rows × columns] and their classes y [rows]. The arrays are kept, not copied. */
  async fit(x: Rows, y: readonly ClassName[]): Promise<this> {
    const where = "TabularClassifier.fit";
    const width = checkRows(where, x);
    const { classes } = checkClasses(where, x.length, y);
    this.#model ??= await loadModel(this.#ctx, this.#options.weights ?? defaultWeightsPath, {
      ...defaultOptions,
      rowBackend: ring(),
    });
    this.#knownRows = { x, width, y, classes };
    return this;
  }

  /** Predicts probabilities [rows × classes] of x [rows × columns], in the order of `classes`. Collective. */
  async predictProba(x: Rows): Promise<number[][]> {
    const where = "TabularClassifier.predictProba";
    const knownRows = this.#requireFitted("predictProba");
    if (x.length === 0) return [];
    checkRows(where, x, knownRows.width);
    const task = { table: createTable(knownRows, x), knownRows: knownRows.x.length };
    const rows = knownRows.x.length + x.length;
    const { ranks, rank } = this.#sequenceRank();
    const assignments = Array.from({ length: ranks }, (_, rankIndex) =>
      assignRows(rows, task.knownRows, { rank: rankIndex, ranks }),
    );
    const { ensembleSize: size, seed } = this.#options;
    const localProbabilities = await predict(
      this.#ctx,
      this.#model!,
      { ...task, assignment: assignments[rank]! },
      { size, seed },
    );
    const allProbabilities = await this.#gatherProbabilities(localProbabilities, assignments, knownRows.classes.length);
    const numClasses = knownRows.classes.length;
    return x.map((_, row) => Array.from(allProbabilities.subarray(row * numClasses, (row + 1) * numClasses)));
  }

  /** Predicts the most probable class of each row of x [rows × columns]. Collective. */
  async predict(x: Rows): Promise<ClassName[]> {
    const { classes } = this.#requireFitted("predict");
    const probabilities = await this.predictProba(x);
    return probabilities.map((row) => classes[row.indexOf(Math.max(...row))]!);
  }

  [Symbol.dispose](): void {
    this.#model?.[Symbol.dispose]();
    this.#model = undefined;
    this.#knownRows = undefined;
  }

  #sequenceRank(): { readonly rank: number; readonly ranks: number } {
    const { coordinate, shape } = this.#ctx.mesh;
    return { rank: coordinate.sp ?? 0, ranks: shape.sp ?? 1 };
  }

  /** Gathers the probabilities of all ranks on every rank, in the order of rows. */
  async #gatherProbabilities(
    localProbabilities: Float64Array,
    assignments: readonly RowAssignment[],
    classCount: number,
  ): Promise<ArrayLike<number> & Float32Array> {
    const localValues = Float32Array.from(localProbabilities);
    if (assignments.length === 1) return localValues;
    const counts = assignments.map(({ testRows }) => testRows.count * classCount);
    using input = fromArray(this.#ctx, localValues, [localValues.length]);
    using out = this.#ctx.device.empty([counts.reduce((a, b) => a + b, 0)], "float32");
    this.#ctx.mesh.group("sp").allGather(out, input, { counts, label: "TabularClassifier" }).wait();
    return out.read();
  }

  #requireFitted(method: string): KnownRows {
    if (this.#knownRows) return this.#knownRows;
    throw new MosaicError({
      where: `TabularClassifier.${method}`,
      expected: "a fitted classifier",
      received: "a classifier that was not fitted",
      remedy: "call and await classifier.fit(x, y) first",
    });
  }
}

/** Creates a table with the known rows, followed by the rows to be predicted, whose labels are not used. */
function createTable({ x: knownFeatures, width, y, classes }: KnownRows, x: Rows): Table {
  const features = new Float64Array((knownFeatures.length + x.length) * width);
  for (const [row, cells] of knownFeatures.entries()) features.set(cells, row * width);
  for (const [row, cells] of x.entries()) features.set(cells, (knownFeatures.length + row) * width);
  const labels = new Uint8Array(knownFeatures.length + x.length);
  labels.set(encodeLabels(y).labels);
  return { name: "x", columns: Array.from({ length: width }, (_, i) => String(i)), classes, features, labels };
}

/** Returns the number of columns of x. Throws unless each row has a finite number in every column. */
function checkRows(where: string, x: Rows, columns?: number): number {
  if (!Array.isArray(x) || x.length === 0) {
    throw new MosaicError({ where, expected: "x, an array of at least one row", received: formatValue(x) });
  }
  const width = columns ?? (x as Rows)[0]?.length ?? 0;
  for (const [row, cells] of (x as Rows).entries()) {
    if (cells?.length !== width || width === 0) {
      throw new MosaicError({
        where: `${where}: x, row ${row}`,
        expected:
          width === 0
            ? "at least 1 column"
            : `${width} columns, as in ${columns === undefined ? "the first row" : "fit"}`,
        received: cells?.length === undefined ? formatValue(cells) : String(cells.length),
      });
    }
    for (let column = 0; column < width; column++) {
      const cell: unknown = cells[column];
      if (typeof cell === "number" && Number.isFinite(cell)) continue;
      throw new MosaicError({
        where: `${where}: x, row ${row}, column ${column}`,
        expected: "a finite number",
        received: formatValue(cell),
        remedy:
          "fill missing cells with a number, such as the column's median, or omit the row; encode categories as numbers",
      });
    }
  }
  return width;
}

function checkClasses(where: string, rows: number, y: readonly ClassName[]): Pick<Table, "classes"> {
  if (!Array.isArray(y) || y.length !== rows) {
    throw new MosaicError({
      where: `${where}: y`,
      expected: `an array of ${rows} classes, one per row`,
      received: Array.isArray(y) ? `${y.length}` : formatValue(y),
    });
  }
  for (const [row, name] of (y as readonly unknown[]).entries()) {
    const isClassName = typeof name === "string" || typeof name === "boolean" || Number.isFinite(name);
    if (!isClassName || typeof name !== typeof y[0]) {
      throw new MosaicError({
        where: `${where}: y, row ${row}`,
        expected: "a string, a number or a boolean, of the same type in all rows",
        received:
          row === 0 || !isClassName ? formatValue(name) : `${formatValue(name)}, and ${formatValue(y[0])} in row 0`,
        remedy: "pass rows without a class to predictProba",
      });
    }
  }
  const classes = [...new Set(y as readonly ClassName[])];
  const maxClasses = defaultOptions.maxClasses;
  if (classes.length < 2 || classes.length > maxClasses) {
    throw new MosaicError({
      where: `${where}: y`,
      expected: `2 to ${maxClasses} classes`,
      received: `${classes.length}`,
      remedy:
        classes.length < 2 ? "pass rows of at least two classes" : "merge rare classes, or train several classifiers",
    });
  }
  return encodeLabels(y as readonly ClassName[]);
}
