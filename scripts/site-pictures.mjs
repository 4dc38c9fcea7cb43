// Draws the pictures of the documents with the planner, from the code of the backends.
//
//   node scripts/site-pictures.mjs [--check]     (after a build)
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { masks, zigzag } from "@mosaic/core";
import { drawMask, predict, profiles, record, tileMapSvg, timelineSvg } from "@mosaic/planner";

const ATTENTION_OPTIONS = { tokens: 65_536, numHeads: 8, headDim: 128, mask: masks.causal(), placement: zigzag() };
const SUBTITLE = "65 536 tokens, causal mask, zigzag placement, 4 ranks";

/** Functions that draw the pictures, by file name. Each draws the same bytes at every call. */
export const PICTURES = {
  "mask.svg": () =>
    drawMask(masks.documents([600, 300, 100], masks.slidingWindow(256)), {
      queries: 1000,
      placement: "zigzag",
      shards: 4,
      title: "Packed documents with a sliding window each: pairs by shard",
    }),
  "ring-timeline.svg": () => {
    const { simulation } = predict({ backend: ring(), mesh: { sp: 4 }, ...ATTENTION_OPTIONS }, profiles["h100-ib400"]);
    return timelineSvg(simulation, {
      title: "Ring of 4 ranks: activity over time, forward and backward",
      subtitle: SUBTITLE,
    });
  },
  "ring-tiles.svg": () =>
    tileMapSvg(record({ backend: ring(), mesh: { sp: 4 }, ...ATTENTION_OPTIONS }), {
      title: "ring: tiles by rank",
      subtitle: SUBTITLE,
    }),
  "mesh2d-tiles.svg": () =>
    tileMapSvg(record({ backend: mesh2d({ shape: [2, 2] }), mesh: { sp: 4 }, ...ATTENTION_OPTIONS }), {
      title: "mesh2d, 2 · 2: tiles by rank",
      subtitle: SUBTITLE,
    }),
};

/** Returns the path of a committed picture. */
export const picturePath = (name) => fileURLToPath(new URL(`../docs/images/${name}`, import.meta.url));

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  for (const [name, draw] of Object.entries(PICTURES)) {
    if (!process.argv.includes("--check")) writeFileSync(picturePath(name), draw());
    else if (readFileSync(picturePath(name), "utf8") !== draw()) {
      console.error(`docs/images/${name} is out of date; run node scripts/site-pictures.mjs`);
      process.exitCode = 1;
    }
  }
}
