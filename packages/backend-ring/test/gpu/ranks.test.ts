import { fileURLToPath } from "node:url";
import { checkMeasurements, mergeErrorSums, type Measurement } from "@mosaic/conformance";
import { launch } from "@mosaic/launcher";
import { expect, test } from "vitest";
import { bundled } from "../../../../vitest.program.ts";

const resolveBuildPath = (path: string) => fileURLToPath(new URL(`../../../${path}`, import.meta.url));
const script = await bundled(new URL("rank.ts", import.meta.url));

// Emulated libraries for the driver, which runs the shipped kernels under emulation, and for NCCL.
if (process.env.MOSAIC_TEST_GPU !== "1") {
  process.env.MOSAIC_CUDA_LIBRARY = resolveBuildPath("kernels-cuda/build-emulated/libcuda_emulated.so");
  process.env.MOSAIC_NCCL_LIBRARY = resolveBuildPath("collectives-nccl/build-emulated/libnccl_emulated.so");
}

/**
 * Runs ring attention on `size` processes, started as users start them. Resolves to the measurements of each process.
 */
async function runOnRanks(size: number): Promise<Measurement[][]> {
  const lines: { rank: number; text: string }[] = [];
  const { exitCode } = await launch({
    entry: script,
    nprocPerNode: size,
    onEvent: (event) => event.type === "line" && lines.push(event),
  });
  expect(exitCode, lines.map(({ text }) => text).join("\n")).toBe(0);
  return Array.from({ length: size }, (_, rank) => {
    const resultLine = lines.find((line) => line.rank === rank && line.text.startsWith("["))!;
    return JSON.parse(resultLine.text) as Measurement[];
  });
}

/**
 * Merges all trials into one. Tensor cores round weights to 16 bits, with different rounding errors per hop than in a
 * single call. The largest error of one small trial is dominated by chance; the errors of all trials together are not.
 */
function poolMeasurements(trials: readonly (readonly Measurement[])[]): Measurement {
  const first = trials[0]![0]!;
  const resultNames = Object.keys(first.results);
  const results = resultNames.map((name) => {
    const measuredError = mergeErrorSums(
      trials.flatMap((ranks) => ranks.map((rank) => rank.results[name]!.measuredError)),
    );
    const localError = mergeErrorSums(trials.map(([rank]) => rank!.results[name]!.localError));
    return [name, { ...first.results[name]!, measuredError, localError }] as const;
  });
  return { ...first, trial: `${trials.length} trials`, results: Object.fromEntries(results) };
}

test("4 processes on CUDA devices over NCCL are as exact as one device, forward and backward", async () => {
  const ranks = await runOnRanks(4);
  const trials = ranks[0]!.map((_, i) => ranks.map((measurements) => measurements[i]!));
  const [float32Trials, bfloat16Trials] = [/float32$/, /bfloat16$/].map((dtype) =>
    trials.filter(([rank]) => dtype.test(rank!.trial)),
  );
  expect(float32Trials!.length).toBeGreaterThan(8);
  expect(bfloat16Trials!.length).toBeGreaterThan(8);
  for (const trial of float32Trials!) checkMeasurements("ring", trial);
  checkMeasurements("ring", [poolMeasurements(bfloat16Trials!)]);
});
