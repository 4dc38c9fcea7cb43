import { defineConfig } from "tsup";

export default defineConfig({
  entry: { index: "src/index.ts", svg: "src/svg.ts" },
  format: ["esm"],
  target: "node20",
  sourcemap: true,
  // What both entries share is one file of a fixed name: named by content, it would pile up in dist.
  esbuildOptions(options) {
    options.chunkNames = "shared";
  },
});
