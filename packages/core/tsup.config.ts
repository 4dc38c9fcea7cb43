import { defineConfig } from "tsup";

export default defineConfig({
  entry: {
    index: "src/index.ts",
    "context-parallel/index": "src/context-parallel/index.ts",
  },
  format: ["esm"],
  target: "node20",
  sourcemap: true,
  // What entries share lies in files named by content: those of earlier builds must not pile up. Declarations are tsc's.
  clean: ["!**/*.d.ts", "!**/*.d.ts.map"],
});
