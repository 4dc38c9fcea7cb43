import { defineConfig } from "tsup";

export default defineConfig({
  entry: [
    "src/main.ts",
    "src/ring-rank.ts",
    "src/collectives-rank.ts",
    "src/prediction-rank.ts",
    "src/proof-run.ts",
    "src/papers.ts",
  ],
  format: ["esm"],
  target: "node20",
  sourcemap: true,
});
