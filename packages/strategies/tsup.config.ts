import { defineConfig } from "tsup";

export default defineConfig({
  entry: ["src/index.ts", "src/cli.ts"],
  format: ["esm"],
  target: "node20",
  sourcemap: true,
  // Not split: chunks are named by content, and would pile up in dist.
  splitting: false,
});
