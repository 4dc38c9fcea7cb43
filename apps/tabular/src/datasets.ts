import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { MosaicError } from "@mosaic/attention";

/** What a class is called. */
export type ClassName = string | number | boolean;

/** Rows with numbers for features and a class each. */
export interface Table {
  readonly name: string;
  readonly columns: readonly string[];
  /** Row-major, rows × columns. Cells of records are float64 until they are standardized: float32 would round away what a large offset leaves. */
  readonly features: Float32Array | Float64Array;
  /** The names of the classes. */
  readonly classes: readonly ClassName[];
  /** By row, which of `classes`. */
  readonly labels: Uint8Array;
}

export const countRows = ({ labels }: Table): number => labels.length;

/** A cell as data sets come: text and null stand for what a number cannot. */
type Cell = number | string | boolean | null | undefined;

/** How a table is made of records. */
export interface TableSchema {
  readonly name: string;
  readonly columns: readonly string[];
  /** The class of a record; undefined where it has none. */
  label(record: Readonly<Record<string, Cell>>): ClassName | undefined;
  /** What to do about a row without some number or its class; "refuse" if absent. */
  readonly missingValuePolicy?: "refuse" | "drop";
}

/**
 * Makes a table of records.
 *
 * @throws MosaicError for a missing or unreadable cell, with its place, unless such rows are to be dropped.
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

/** Names of classes, in order, and by row which of them. */
export function encodeLabels(names: readonly ClassName[]): Pick<Table, "classes" | "labels"> {
  const classes = [...new Set(names)].toSorted((a, b) => (a < b ? -1 : 1));
  const classNumbers = new Map(classes.map((name, i) => [name, i]));
  return { classes, labels: Uint8Array.from(names, (name) => classNumbers.get(name)!) };
}

function parseCell(cell: Cell): number | undefined {
  const value = typeof cell === "string" && cell.trim() !== "" ? Number(cell) : cell;
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

/** The rows of a table in a given order, or some of them. */
export function selectRows(table: Table, rows: readonly number[]): Table {
  const width = table.columns.length;
  const features = new Float64Array(rows.length * width);
  for (const [i, row] of rows.entries())
    features.set(table.features.subarray(row * width, (row + 1) * width), i * width);
  return { ...table, features, labels: Uint8Array.from(rows, (row) => table.labels[row]!) };
}

/**
 * Centres and scales every column by the mean and standard deviation of the first `trainRows` rows, and cuts off at ±`limit`
 * of those: nothing is learnt of the others, not even their spread.
 */
export function standardize(table: Table, numTrainRows: number, maxMagnitude = 10): Float32Array {
  const width = table.columns.length;
  const out = new Float32Array(table.features.length);
  for (let column = 0; column < width; column++) {
    const valueAt = (row: number): number => table.features[row * width + column]!;
    const unit = computeUnit(numTrainRows, valueAt);
    let mean = 0;
    for (let row = 0; row < numTrainRows; row++) mean += valueAt(row) / unit / numTrainRows;
    let variance = 0;
    for (let row = 0; row < numTrainRows; row++) variance += (valueAt(row) / unit - mean) ** 2 / numTrainRows;
    const scale = variance > 0 ? 1 / Math.sqrt(variance) : unit;
    for (let row = 0; row < countRows(table); row++) {
      const score = (valueAt(row) / unit - mean) * scale;
      out[row * width + column] = Math.max(-maxMagnitude, Math.min(maxMagnitude, score));
    }
  }
  return out;
}

/**
 * A power of two near the largest magnitude of a column's known cells. Cells divided by it keep all their digits, and their squares neither
 * overflow nor underflow.
 */
function computeUnit(numTrainRows: number, valueAt: (row: number) => number): number {
  let largest = 0;
  for (let row = 0; row < numTrainRows; row++) largest = Math.max(largest, Math.abs(valueAt(row)));
  return largest === 0 ? 1 : 2 ** Math.max(-1022, Math.min(1023, Math.floor(Math.log2(largest))));
}

/**
 * Every column by normal scores: what a cell would be if the known rows' cells of its column were normal (van der Waerden
 * 1952). Cells between two known ones lie between their scores; none lies beyond the outermost.
 */
export function computeNormalScores(table: Table, numTrainRows: number): Table {
  const width = table.columns.length;
  const features = new Float32Array(table.features.length);
  for (let column = 0; column < width; column++) {
    const valueAt = (row: number): number => table.features[row * width + column]!;
    const trainValues = Float64Array.from({ length: numTrainRows }, (_, row) => valueAt(row)).toSorted();
    for (let row = 0; row < countRows(table); row++) {
      // Ties have their mean rank, and so has what lies between two.
      const meanRank = (countBelow(trainValues, valueAt(row), false) + countBelow(trainValues, valueAt(row), true)) / 2;
      features[row * width + column] = normalQuantile((meanRank + 0.5) / (numTrainRows + 1));
    }
  }
  return { ...table, features };
}

/** How many of sorted numbers are less than x, or not more. */
function countBelow(sortedValues: Float64Array, x: number, includesEqual: boolean): number {
  let [low, high] = [0, sortedValues.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sortedValues[middle]! < x || (includesEqual && sortedValues[middle] === x)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The standard normal quantile, to 4.5e-4: Abramowitz and Stegun 1964, 26.2.23. */
function normalQuantile(p: number): number {
  const t = Math.sqrt(-2 * Math.log(Math.min(p, 1 - p)));
  const x = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  return p < 0.5 ? -x : x;
}

// Tables of the npm package vega-datasets (BSD-3-Clause); its page states where each comes from.
const datasetDirectory = join(dirname(createRequire(import.meta.url).resolve("vega-datasets/package.json")), "data");

export type DatasetName = "penguins" | "species" | "cars" | "weather" | "flights";

interface DatasetSource extends TableSchema {
  readonly file: string;
}

const datasetSources: Readonly<Record<DatasetName, DatasetSource>> = {
  /** Gorman, Williams and Fraser 2014: whether a penguin is male, by its measures. */
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
  /** Whether a car of 1970 to 1982 was made in the USA, by what it can do. */
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

/** The small tables, on which the model is measured. */
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
