import { mergeConfig } from "vitest/config";
import shared from "../../vitest.shared.ts";

/** Tests of the stand-ins, which a real GPU cannot run: they ask for failures, or compile. The README lists them, too. */
const ofStandIns = ["errors", "faults", "lifetime", "places", "refusal", "system"].map(
  (name) => `test/${name}.test.ts`,
);

export default mergeConfig(shared, {
  test: { exclude: process.env.MOSAIC_TEST_GPU === "1" ? ofStandIns : [] },
});
