import { writeFileSync } from "node:fs";
import { Resvg } from "@resvg/resvg-js";
import { type Comparison, type PlantedResult, readResult, RESULTS } from "../results.ts";
import { bytesPicture } from "./bytes-picture.ts";
import { page } from "./page.ts";
import { recallPicture } from "./recall-picture.ts";
import { routingPicture } from "./routing-picture.ts";

/** Pixels of a PNG for one of its SVG. */
const SCALE = 2;

/** The pictures of some results by name, each an SVG. */
export function pictures(comparison: Comparison, planted: PlantedResult): Readonly<Record<string, string>> {
  const mapped = comparison.methods.find(({ name }) => name === "meta 2")!;
  return {
    routing: routingPicture(comparison.map, mapped),
    "loss-bytes": bytesPicture(comparison),
    recall: recallPicture(comparison, planted),
  };
}

/** The same picture in pixels. */
export function png(svg: string): Uint8Array {
  const font = { loadSystemFonts: true, defaultFontFamily: "DejaVu Sans" };
  return new Resvg(svg, { fitTo: { mode: "zoom", value: SCALE }, font }).render().asPng();
}

/** Draws all results: SVG and PNG of each picture, and a page of all. */
export function drawAll(): void {
  const comparison = readResult<Comparison>(new URL("genome.jsonl", RESULTS));
  const planted = readResult<PlantedResult>(new URL("planted.jsonl", RESULTS));
  const drawn = pictures(comparison, planted);
  for (const [name, svg] of Object.entries(drawn)) {
    writeFileSync(new URL(`${name}.svg`, RESULTS), svg);
    writeFileSync(new URL(`${name}.png`, RESULTS), png(svg));
  }
  writeFileSync(new URL("index.html", RESULTS), page(comparison, planted, drawn));
  console.log(`${Object.keys(drawn).join(", ")}: SVG and PNG, and index.html, are in apps/genome/results`);
}
