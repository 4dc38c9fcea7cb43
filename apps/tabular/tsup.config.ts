import { defineConfig } from "tsup";

export default defineConfig({
  entry: ["src/main.ts", "src/train.ts", "src/flights.ts"],
  format: ["esm"],
  target: "node20",
  sourcemap: true,
});
