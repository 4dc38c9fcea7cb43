// Draws the picture of the READMEs: 32 documents of very unequal lengths on 4 ranks, before and after `dispatch`.
//
//   node scripts/dispatch-picture.mjs [--check]
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";
import { dispatch } from "@mosaic/backend-flex";
import { masks } from "@mosaic/core";
import { drawDispatch } from "@mosaic/planner";

/** Document lengths in the README of backend-flex. A test compares them. */
export const lengths = [
  9800, 310, 1220, 150, 640, 4100, 90, 2300, 480, 120, 7600, 210, 850, 330, 60, 1500, 270, 5200, 180, 400, 1100, 75,
  3100, 240, 560, 130, 13_900, 350, 700, 190, 1900, 7481,
];
const ranks = 4;

/** Path of the committed picture. */
export const file = fileURLToPath(new URL("../docs/images/dispatch.svg", import.meta.url));

/** Draws the picture. Every call returns the same bytes. */
export function draw() {
  const length = lengths.reduce((sum, each) => sum + each, 0);
  const mask = masks.documents(lengths, "causal");
  const dispatchPlacement = dispatch({ mask, length, ranks, chunkSize: 256 });
  const title = `${lengths.length} documents of ${Math.min(...lengths)} to ${Math.max(...lengths)} tokens on ${ranks} ranks`;
  return drawDispatch(mask, { queries: length, ranks, after: dispatchPlacement, bytesPerRow: 4096, title });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  if (!process.argv.includes("--check")) writeFileSync(file, draw());
  else if (readFileSync(file, "utf8") !== draw()) {
    console.error("docs/images/dispatch.svg is out of date; run node scripts/dispatch-picture.mjs");
    process.exit(1);
  }
}
