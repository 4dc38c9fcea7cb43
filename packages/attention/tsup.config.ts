import { defineConfig } from "tsup";

export default defineConfig({
  entry: {
    index: "src/index.ts",
    "context-parallel": "src/context-parallel.ts",
    core: "src/core.ts",
    meta: "src/meta.ts",
    nn: "src/nn.ts",
    planner: "src/planner.ts",
    testing: "src/testing.ts",
    doctor: "src/doctor/main.ts",
    "doctor-probe": "src/doctor/probe.ts",
  },
  format: ["esm"],
  target: "node20",
  sourcemap: true,
  // What entries share lies in files named by content: those of earlier builds must not pile up. Declarations are tsc's.
  clean: ["!**/*.d.ts", "!**/*.d.ts.map"],
});
