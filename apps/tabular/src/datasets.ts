import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { MosaicError } from "@mosaic/attention";

/** Name of a class. */
export type ClassName = string | number | boolean;

/** Rows with numeric features and a class. */
export interface Table {
  readonly name: string;
  readonly columns: readonly string[];
  /**
   * Row-major, rows × columns. Cells of records are float64 until they are standardized, because float32 would lose the
   * differences of values with a large offset.
   */
  readonly features: Float32Array | Float64Array;
  /** The names of the classes. */
  readonly classes: readonly ClassName[];
  /** Index of each row's class in `classes`. */
  readonly labels: Uint8Array;
}

export const countRows = ({ labels }: Table): number => labels.length;

/** A cell of a data set. Text and null represent values that are not numbers. */
type Cell = number | string | boolean | null | undefined;

/** Schema by which a table is created from records. */
export interface TableSchema {
  readonly name: string;
  readonly columns: readonly string[];
  /** Returns the class of a record, or undefined if it has none. */
  label(record: Readonly<Record<string, Cell>>): ClassName | undefined;
  /** Whether a row without a number or a class is an error ("refuse") or is dropped ("drop"). Default "refuse". */
  readonly missingValuePolicy?: "refuse" | "drop";
}

/**
 * Creates a table from records.
 *
 * @throws MosaicError for a missing or invalid cell, with its position, unless such rows are dropped.
 */
export function createTable(records: readonly Readonly<Record<string, Cell>>[], schema: TableSchema): Table {
  const { name, columns, missingValuePolicy = "refuse" } = schema;
  const features: number[] = [];
  const labels: ClassName[] = [];
  for (const [row, record] of records.entries()) {
    const cellValues = columns.map((column) => parseCell(record[column]));
    const label = schema.label(record);
    const missingField = label === undefined ? "its class" : columns.find((_, i) => cellValues[i] === undefined);
    if (missingField === undefined) {
      features.push(...(cellValues as number[]));
      labels.push(label!);
    } else if (missingValuePolicy === "refuse") {
      throw new MosaicError({
        where: `table ${name}, row ${row}`,
        expected: "a number in every column, and a class label",
        received:
          missingField === "its class"
            ? "no class"
            : `${JSON.stringify(record[missingField]) ?? "nothing"} in ${missingField}`,
        remedy: 'complete the row, or drop incomplete rows with missingValuePolicy: "drop"',
      });
    }
  }
  return { name, columns, features: Float64Array.from(features), ...encodeLabels(labels) };
}

/** Returns the sorted names of the classes, and the index of each row's class. */
export function encodeLabels(names: readonly ClassName[]): Pick<Table, "classes" | "labels"> {
  const classes = [...new Set(names)].toSorted((a, b) => (a < b ? -1 : 1));
  const classNumbers = new Map(classes.map((name, i) => [name, i]));
  return { classes, labels: Uint8Array.from(names, (name) => classNumbers.get(name)!) };
}

function parseCell(cell: Cell): number | undefined {
  const value = typeof cell === "string" && cell.trim() !== "" ? Number(cell) : cell;
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

/** Returns the table with the given rows, in the given order. */
export function selectRows(table: Table, rows: readonly number[]): Table {
  const width = table.columns.length;
  const features = new Float64Array(rows.length * width);
  for (const [i, row] of rows.entries())
    features.set(table.features.subarray(row * width, (row + 1) * width), i * width);
  return { ...table, features, labels: Uint8Array.from(rows, (row) => table.labels[row]!) };
}

/**
 * Standardizes every column by the mean and standard deviation of the first `numTrainRows` rows, and clips it to
 * ±`maxMagnitude` standard deviations. Statistics of the other rows are not used.
 */
export function standardize(table: Table, numTrainRows: number, maxMagnitude = 10): Float32Array {
  const width = table.columns.length;
  const out = new Float32Array(table.features.length);
  for (let column = 0; column < width; column++) {
    const valueAt = (row: number): number => table.features[row * width + column]!;
    const unit = computeUnit(numTrainRows, valueAt);
    // Statistics are those of differences from the first cell. They are exactly 0 for a constant column.
    const origin = numTrainRows > 0 ? valueAt(0) / unit : 0;
    const differenceAt = (row: number): number => valueAt(row) / unit - origin;
    let mean = 0;
    for (let row = 0; row < numTrainRows; row++) mean += differenceAt(row) / numTrainRows;
    let variance = 0;
    for (let row = 0; row < numTrainRows; row++) variance += (differenceAt(row) - mean) ** 2 / numTrainRows;
    const scale = variance > 0 ? 1 / Math.sqrt(variance) : unit;
    for (let row = 0; row < countRows(table); row++) {
      const score = (differenceAt(row) - mean) * scale;
      out[row * width + column] = Math.max(-maxMagnitude, Math.min(maxMagnitude, score));
    }
  }
  return out;
}

/**
 * Returns a power of two near the largest magnitude of a column's known cells. Cells divided by it keep all their
 * digits, and their squares neither overflow nor underflow.
 */
function computeUnit(numTrainRows: number, valueAt: (row: number) => number): number {
  let largest = 0;
  for (let row = 0; row < numTrainRows; row++) largest = Math.max(largest, Math.abs(valueAt(row)));
  return largest === 0 ? 1 : 2 ** Math.max(-1022, Math.min(1023, Math.floor(Math.log2(largest))));
}

/**
 * Replaces every column by normal scores: the values that cells would have if the known cells of the column were
 * normally distributed (van der Waerden 1952). A cell between two known cells has a score between theirs, and no score
 * is outside the range of the known ones.
 */
export function computeNormalScores(table: Table, numTrainRows: number): Table {
  const width = table.columns.length;
  const features = new Float32Array(table.features.length);
  for (let column = 0; column < width; column++) {
    const valueAt = (row: number): number => table.features[row * width + column]!;
    const trainValues = Float64Array.from({ length: numTrainRows }, (_, row) => valueAt(row)).toSorted();
    for (let row = 0; row < countRows(table); row++) {
      // Ties have their mean rank, and a value between two known cells has the mean of their ranks.
      const meanRank = (countBelow(trainValues, valueAt(row), false) + countBelow(trainValues, valueAt(row), true)) / 2;
      features[row * width + column] = normalQuantile((meanRank + 0.5) / (numTrainRows + 1));
    }
  }
  return { ...table, features };
}

/** Returns the number of sorted values that are less than x, or not greater if `includesEqual`. */
function countBelow(sortedValues: Float64Array, x: number, includesEqual: boolean): number {
  let [low, high] = [0, sortedValues.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sortedValues[middle]! < x || (includesEqual && sortedValues[middle] === x)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Computes the standard normal quantile, with an error below 4.5e-4: Abramowitz and Stegun 1964, 26.2.23. */
function normalQuantile(p: number): number {
  const t = Math.sqrt(-2 * Math.log(Math.min(p, 1 - p)));
  const x = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  return p < 0.5 ? -x : x;
}

// Tables of the npm package vega-datasets (BSD-3-Clause). Its page lists the source of each table.
const datasetDirectory = join(dirname(createRequire(import.meta.url).resolve("vega-datasets/package.json")), "data");

export type DatasetName = "penguins" | "species" | "cars" | "weather" | "flights";

interface DatasetSource extends TableSchema {
  readonly file: string;
}

const datasetSources: Readonly<Record<DatasetName, DatasetSource>> = {
  /** Gorman, Williams and Fraser 2014: whether a penguin is male, by its measurements. */
  penguins: {
    name: "penguins",
    file: "penguins.json",
    columns: ["Beak Length (mm)", "Beak Depth (mm)", "Flipper Length (mm)", "Body Mass (g)"],
    label: ({ Sex }) => (Sex === "MALE" || Sex === "FEMALE" ? Sex === "MALE" : undefined),
    missingValuePolicy: "drop",
  },
  /** The same penguins: which of three species. */
  species: {
    name: "species",
    file: "penguins.json",
    columns: ["Beak Length (mm)", "Beak Depth (mm)", "Flipper Length (mm)", "Body Mass (g)"],
    label: ({ Species }) => (typeof Species === "string" ? Species : undefined),
    missingValuePolicy: "drop",
  },
  /** Whether a car of 1970 to 1982 was made in the USA, by its technical data. */
  cars: {
    name: "cars",
    file: "cars.json",
    columns: ["Miles_per_Gallon", "Cylinders", "Displacement", "Horsepower", "Weight_in_lbs", "Acceleration"],
    label: ({ Origin }) => Origin === "USA",
    missingValuePolicy: "drop",
  },
  /** Whether a day in Seattle, 2012 to 2015, was sunny, by temperatures and wind alone. */
  weather: {
    name: "weather",
    file: "seattle-weather.csv",
    columns: ["temp_max", "temp_min", "wind"],
    label: ({ weather }) => weather === "sun",
  },
  /** Whether a flight in the USA, 2001, was more than 15 minutes late, by its distance and the hour it left. */
  flights: {
    name: "flights",
    file: "flights-200k.json",
    columns: ["distance", "time"],
    label: ({ delay }) => (typeof delay === "number" ? delay > 15 : undefined),
  },
};

/** The small tables on which the model is evaluated. */
export const evaluationSets: readonly DatasetName[] = ["penguins", "cars", "weather", "species"];

export function loadDataset(name: DatasetName): Table {
  const source = datasetSources[name];
  return createTable(readRecords(join(datasetDirectory, source.file)), source);
}

function readRecords(path: string): readonly Readonly<Record<string, Cell>>[] {
  const text = readFileSync(path, "utf8");
  if (path.endsWith(".json")) return JSON.parse(text) as Record<string, Cell>[];
  const [header, ...lines] = text.trim().split(/\r?\n/);
  const names = header!.split(",");
  return lines.map((line) => Object.fromEntries(line.split(",").map((cell, i) => [names[i]!, cell])));
}
