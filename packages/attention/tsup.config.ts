import { defineConfig } from "tsup";

export default defineConfig({
  entry: {
    index: "src/index.ts",
    "context-parallel": "src/context-parallel.ts",
    doctor: "src/doctor/main.ts",
    "doctor-probe": "src/doctor/probe.ts",
  },
  format: ["esm"],
  target: "node20",
  sourcemap: true,
  // Not split: chunks are named by content, and would pile up in dist.
  splitting: false,
});
