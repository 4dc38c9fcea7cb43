import { defineConfig } from "tsup";

export default defineConfig({
  entry: {
    main: "src/main.ts",
    "ring-rank": "src/ring-rank.ts",
    "collectives-rank": "src/collectives-rank.ts",
    "prediction-rank": "src/prediction-rank.ts",
    "peers-ring-rank": "src/peers-ring-rank.ts",
    "proof-run": "src/proof-run.ts",
    papers: "papers/main.ts",
    gpu: "gpu/main.ts",
    "gpu-worker": "gpu/worker.ts",
    "gpu-ring-rank": "gpu/ring-rank.ts",
  },
  format: ["esm"],
  target: "node20",
  sourcemap: true,
});
