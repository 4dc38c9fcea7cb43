import "./emulated.ts";
import { test } from "vitest";
import { cuda } from "../src/index.ts";
import { checkTrial, trials } from "./trials.ts";

test.each(trials)("attention on tensor cores: $name", async (trial) => {
  using device = cuda();
  await checkTrial(device, trial);
});
