import { defineConfig } from "tsup";

export default defineConfig([
  // Not split: chunks are named by content, and would pile up in dist.
  {
    entry: {
      index: "src/index.ts",
      cli: "src/cli.ts",
      agent: "src/agent/index.ts",
      "agent-process": "src/agent/process.ts",
    },
    format: ["esm"],
    target: "node20",
    sourcemap: true,
    splitting: false,
  },
  // Loaded into every rank by `node --require`, which is synchronous and comes before the user's first module.
  { entry: ["src/preload.ts"], format: ["cjs"], target: "node20", outExtension: () => ({ js: ".cjs" }) },
]);
