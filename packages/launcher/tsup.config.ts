import { defineConfig } from "tsup";

export default defineConfig([
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
    // Chunks are named by content: those of earlier builds go. The patterns stay.
    clean: ["!preload.cjs", "!**/*.d.ts", "!**/*.d.ts.map"],
  },
  // Loaded into every rank by `node --require`, which is synchronous and comes before the user's first module.
  { entry: ["src/preload.ts"], format: ["cjs"], target: "node20", outExtension: () => ({ js: ".cjs" }) },
]);
