import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, it } from "vitest";

/** `npm run test:leaks` uses 10 000. */
const STEPS = Number(process.env.MOSAIC_TEST_STEPS ?? 3000);
const MIB = 2 ** 20;

it(`keeps resident memory flat over ${STEPS} forward and backward steps`, { timeout: 240_000 }, async () => {
  const script = fileURLToPath(new URL("./leak/steps.mjs", import.meta.url));
  // V8 grows its young generation from 1 to 16 MiB when enough has survived in it, in any step: here it stays small.
  const flags = ["--expose-gc", "--max-semi-space-size=1"];
  const { stdout } = await promisify(execFile)(process.execPath, [...flags, script, String(STEPS)]);
  const { samples, allocated } = JSON.parse(stdout) as { samples: number[]; allocated: number };
  expect(samples).toHaveLength(40);
  // The first fifth is warm-up: code is compiled and pools grow. Single samples vary by several MiB, medians by less
  // than one.
  const residentGrowth = computeMedian(samples.slice(24, 40)) - computeMedian(samples.slice(8, 24));
  console.log(`resident memory grew by ${(residentGrowth / MIB).toFixed(2)} MiB in the last ${STEPS * 0.4} steps`);
  // This is 1.7 KB per step for 3 000 steps and 512 bytes for 10 000: less than a JavaScript object with its native
  // part.
  expect(residentGrowth).toBeLessThan(2 * MIB);
  // Only parameters remain: no tensor of a step outlives the step.
  expect(allocated).toBeLessThan(64 * 1024);
});

const computeMedian = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length / 2]!;
