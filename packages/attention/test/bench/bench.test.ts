import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { median, type Measurement } from "../../src/bench/measure.ts";
import { drawBench, formatBenchTable } from "../../src/bench/report.ts";

const bin = fileURLToPath(new URL("../../bin/mosaic-bench.js", import.meta.url));
const runBench = (...args: readonly string[]) => spawnSync(process.execPath, [bin, ...args], { encoding: "utf8" });
const smallOptions = ["--heads", "2", "--head-dim", "8", "--repetitions", "2"];

test("measures each backend at each length, and reports the bytes sent", () => {
  const benchRun = runBench(
    ...smallOptions,
    "--seq-lengths",
    "33,64",
    "--backends",
    "local,ring,ulysses",
    "--backward",
    "--json",
  );
  expect([benchRun.status, benchRun.stderr]).toEqual([0, ""]);
  const { measurements, mask, placement, dtype } = JSON.parse(benchRun.stdout);
  expect([mask, placement, dtype]).toEqual(["causal", "zigzag", "float32"]);
  const measurementNames = (measurements as Measurement[]).map(
    ({ seqLength, backend, ranks }) => `${seqLength} ${backend} ${ranks}`,
  );
  expect(measurementNames).toEqual([
    "33 local 1",
    "33 ring 2",
    "33 ulysses 2",
    "64 local 1",
    "64 ring 2",
    "64 ulysses 2",
  ]);
  for (const { backend, seconds, shortest, longest, ratio, bytesSent } of measurements as Measurement[]) {
    expect(shortest <= seconds && seconds <= longest && shortest > 0).toBe(true);
    expect(backend === "local" ? ratio : 1).toBe(1);
    expect(bytesSent > 0).toBe(backend !== "local");
  }
  // Forward sends k and v once around the ring. Backward sends the same and the float32 gradients: 64 rows, 2 heads of
  // 8.
  const ringMeasurement = (measurements as Measurement[]).find(
    ({ seqLength, backend }) => seqLength === 64 && backend === "ring",
  )!;
  expect(ringMeasurement.bytesSent).toBeGreaterThanOrEqual(2 * 2 * 64 * 2 * 8 * 4);
});

test("prints a table, and draws a bar for each of its rows", () => {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-bench-"));
  try {
    const svgPath = join(directory, "chart.svg");
    const benchRun = runBench(
      ...smallOptions,
      "--seq-lengths",
      "64",
      "--mask",
      "slidingWindow:8",
      "--dtype",
      "bfloat16",
      "--svg",
      svgPath,
    );
    expect([benchRun.status, benchRun.stderr]).toEqual([0, ""]);
    expect(benchRun.stdout).toMatch(
      /^2 ranks, 2 heads of size 8, bfloat16, slidingWindow\(8\), contiguous, forward; \d+ cores\n\ntokens {2}backend/,
    );
    expect(benchRun.stdout.match(/^ +64 {2}(local|ring)/gm)?.length).toBe(2);
    expect(benchRun.stdout).toContain("\nMedians of 2 rounds, each of which runs all backends in sequence;");
    const singleRound = runBench(...smallOptions, "--repetitions", "1", "--seq-lengths", "32");
    expect(singleRound.stdout).toContain("\nOne round, which runs all backends in sequence;");
    expect(readFileSync(svgPath, "utf8").match(/<title>(local|ring), 64 tokens: /g)?.length).toBe(2);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
});

test("rejects invalid options before it measures", () => {
  for (const [args, message] of [
    [["--seq-lengths", "0"], /--seq-lengths: expected an integer ≥ 1/],
    [["--backends", "star"], /--backends: expected one of local, ring, mesh2d, ulysses, flex, received "star"/],
    [["--heads", "3", "--kv-heads", "2"], /--kv-heads: expected a divisor of --heads 3, received 2/],
    [["--mask", "documents:5", "--seq-lengths", "64"], /--mask documents:5: /],
    [["--svg", "nowhere/a.svg"], /--svg nowhere\/a.svg: ENOENT/],
    [["--bogus"], /Unknown option '--bogus'.*; mosaic-bench --help lists all options/],
  ] as const) {
    const benchRun = runBench(...args);
    expect([benchRun.status, benchRun.stdout]).toEqual([2, ""]);
    expect(benchRun.stderr).toMatch(message);
  }
  expect(runBench("--help").stdout).toContain("--seq-lengths A,B");
});

test("--version prints the version of the package", () => {
  const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as {
    version: string;
  };
  expect(runBench("--version")).toMatchObject({ status: 0, stdout: `${version}\n` });
});

test("computes medians, and formats rows of the table", () => {
  expect([median([3, 1, 2]), median([4, 1, 2, 3]), median([7])]).toEqual([2, 2.5, 7]);
  const baseMeasurement = { seqLength: 64, backend: "ring", ranks: 2, seconds: 0.002, shortest: 0.001, longest: 0.004 };
  const exampleMeasurements = [{ ...baseMeasurement, ratio: 1.234, flopsPerSecond: 5.67e9, bytesSent: 4096 }];
  expect(formatBenchTable(exampleMeasurements).split("\n")[1]).toBe(
    "    64  ring       2 ms  1 ms  4 ms  1.23 ×      5.7  4.1 kB",
  );
  expect(drawBench(exampleMeasurements, "a < b")).toContain("a &lt; b");
});
