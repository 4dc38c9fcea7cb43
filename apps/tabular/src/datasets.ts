import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { type Cell, type Table, type TableRecipe, createTable } from "./table.ts";

// Tables of the npm package vega-datasets (BSD-3-Clause); its page states where each comes from.
const folder = join(dirname(createRequire(import.meta.url).resolve("vega-datasets/package.json")), "data");

export type DatasetName = "penguins" | "cars" | "weather" | "flights";

interface Source extends TableRecipe {
  readonly file: string;
}

const sources: Readonly<Record<DatasetName, Source>> = {
  /** Gorman, Williams and Fraser 2014: whether a penguin is male, by its measures. */
  penguins: {
    name: "penguins",
    file: "penguins.json",
    columns: ["Beak Length (mm)", "Beak Depth (mm)", "Flipper Length (mm)", "Body Mass (g)"],
    label: ({ Sex }) => (Sex === "MALE" || Sex === "FEMALE" ? Sex === "MALE" : undefined),
    missing: "drop",
  },
  /** Whether a car of 1970 to 1982 was made in the USA, by what it can do. */
  cars: {
    name: "cars",
    file: "cars.json",
    columns: ["Miles_per_Gallon", "Cylinders", "Displacement", "Horsepower", "Weight_in_lbs", "Acceleration"],
    label: ({ Origin }) => Origin === "USA",
    missing: "drop",
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
export const evaluationSets: readonly DatasetName[] = ["penguins", "cars", "weather"];

export function dataset(name: DatasetName): Table {
  const source = sources[name];
  return createTable(readRecords(join(folder, source.file)), source);
}

function readRecords(path: string): readonly Readonly<Record<string, Cell>>[] {
  const text = readFileSync(path, "utf8");
  if (path.endsWith(".json")) return JSON.parse(text) as Record<string, Cell>[];
  const [header, ...lines] = text.trim().split(/\r?\n/);
  const names = header!.split(",");
  return lines.map((line) => Object.fromEntries(line.split(",").map((cell, i) => [names[i]!, cell])));
}
