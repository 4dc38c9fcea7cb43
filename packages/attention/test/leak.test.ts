import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, it } from "vitest";

const STEPS = 10_000;
const MIB = 2 ** 20;

it(`keeps resident memory flat over ${STEPS} forward and backward steps`, { timeout: 240_000 }, async () => {
  const script = fileURLToPath(new URL("./leak/steps.mjs", import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, ["--expose-gc", script, String(STEPS)]);
  const { samples, allocated } = JSON.parse(stdout) as { samples: number[]; allocated: number };
  expect(samples).toHaveLength(20);
  // The first quarter warms up: code is compiled, pools find their size.
  const half = (from: number, to: number): number => Math.min(...samples.slice(from, to));
  const growth = half(13, 20) - half(5, 12);
  console.log(
    `resident memory grew by ${(growth / MIB).toFixed(2)} MiB, ${Math.round(growth / (STEPS * 0.4))} bytes a step`,
  );
  // One lost float32 row [8] a step would be 128 kB, a lost tensor's least allocation many times that.
  expect(growth).toBeLessThan(1 * MIB);
  // Parameters only: nothing that a step made outlives it.
  expect(allocated).toBeLessThan(64 * 1024);
});
