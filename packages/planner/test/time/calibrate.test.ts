import { world } from "@mosaic/collectives-local";
import { type Context, local } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { afterEach, expect, test } from "vitest";
import { calibrate, parseProfile, type Profile, profiles, record, simulate } from "../../src/index.ts";
import { synthesize } from "./synthetic.ts";

let openContexts: readonly Context[] = [];

afterEach(async () => {
  await Promise.all(openContexts.map((ctx) => ctx.close()));
  openContexts = [];
});

async function openRanks(count: number): Promise<readonly Context[]> {
  openContexts = await world(count, { device: () => cpu({ threads: 1 }) });
  return openContexts;
}

const baseProfile = profiles["cpu-local"];
const trueProfile: Profile = {
  ...baseProfile,
  kernels: {
    ...baseProfile.kernels,
    launch: 2e-6,
    bandwidth: 7e9,
    attend: { float32: { flops: 50e9, halfSpeedRows: 12, halfSpeedKeys: 30, halfSpeedHeadDim: 20, interleaved: 1.25 } },
    attendBackward: {
      float32: { flops: 40e9, halfSpeedRows: 20, halfSpeedKeys: 10, halfSpeedHeadDim: 8, interleaved: 1.5 },
    },
  },
  links: { ...baseProfile.links, "intra-node": { latency: 40e-6, bandwidth: 3e9, sharedBy: 1, duplex: false } },
  cores: { perNode: 2, efficiency: 0.9, wait: 150e-6 },
};

test("calibrate recovers the profile of a synthetic machine", async () => {
  const contexts = synthesize(await openRanks(3), trueProfile);
  const calibrated = await calibrate({ contexts, dtypes: ["float32"], repetitions: 1, cores: 2, name: "made up" });
  const { attend, attendBackward, launch, bandwidth } = calibrated.kernels;
  expect(calibrated).toMatchObject({ name: "made up", ranksPerNode: 3, communicationTax: 0 });
  expect(launch * 1e6).toBeCloseTo(2, 3);
  expect(bandwidth / 1e9).toBeCloseTo(7, 3);
  for (const [speed, trueSpeed] of [
    [attend.float32!, trueProfile.kernels.attend.float32!] as const,
    [attendBackward.float32!, trueProfile.kernels.attendBackward.float32!] as const,
  ]) {
    expect(speed.flops / trueSpeed.flops).toBeCloseTo(1, 2);
    expect(speed.halfSpeedKeys).toBeCloseTo(trueSpeed.halfSpeedKeys, 0);
    expect(speed.halfSpeedRows).toBeCloseTo(trueSpeed.halfSpeedRows, 0);
    expect(speed.halfSpeedHeadDim).toBeCloseTo(trueSpeed.halfSpeedHeadDim, 0);
    expect(speed.interleaved).toBeCloseTo(trueSpeed.interleaved!, 2);
  }
  expect(calibrated.cores!.perNode).toBe(2);
  expect(calibrated.cores!.efficiency).toBeCloseTo(0.9, 3);
  expect(calibrated.cores!.wait! * 1e6).toBeCloseTo(150, 0);
  expect(calibrated.links["intra-node"].latency * 1e6).toBeCloseTo(40, 3);
  expect(calibrated.links["intra-node"].bandwidth / 1e9).toBeCloseTo(3, 6);
  expect(calibrated.enqueue).toBeGreaterThan(0);
  expect(calibrated.stepOverhead).toBeGreaterThanOrEqual(0);
});

test("calibrate measures the time of a step beyond kernels, messages and waits", async () => {
  const excessSeconds = 5e-3;
  const contexts = synthesize(await openRanks(2), { ...trueProfile, cores: { perNode: 2 } }, excessSeconds);
  const calibrated = await calibrate({ contexts, dtypes: ["float32"], headDims: [64], repetitions: 1, cores: 2 });
  const step = record({ backend: local(), mesh: { dp: 2 }, tokens: 512, numHeads: 4, headDim: 64, dtype: "float32" });
  const simulateSeconds = (profile: Profile): number => simulate(step, profile).seconds;
  const profileWithoutOverhead = {
    ...calibrated,
    enqueue: 0,
    stepOverhead: 0,
    cores: { ...calibrated.cores!, efficiency: 1 },
  };
  // Operations are enqueued concurrently with kernels, which hides part of the time.
  const ratio = (simulateSeconds(calibrated) - simulateSeconds(profileWithoutOverhead)) / excessSeconds;
  expect(ratio).toBeGreaterThan(0.7);
  expect(ratio).toBeLessThan(1);
});

test("calibrate times kernels on as many ranks at once as there are cores", async () => {
  const sharedCoresProfile = { ...trueProfile, cores: { perNode: 1.5 } };
  const contexts = synthesize(await openRanks(3), sharedCoresProfile);
  const calibrated = await calibrate({ contexts, dtypes: ["float32"], headDims: [64], repetitions: 1, cores: 2 });
  // Two ranks together are as fast as one and a half. Measured is the speed of each while the other works.
  expect(calibrated.kernels.launch * 1e6).toBeCloseTo(2 / 0.75, 3);
  expect(calibrated.kernels.bandwidth / 7e9).toBeCloseTo(0.75, 3);
  const oneCoreProfile = await calibrate({ contexts, dtypes: ["float32"], headDims: [64], repetitions: 1, cores: 1 });
  expect(calibrated.kernels.attend.float32!.flops / oneCoreProfile.kernels.attend.float32!.flops).toBeCloseTo(0.75, 3);
  expect([calibrated.cores!.perNode, oneCoreProfile.cores!.perNode]).toEqual([2, 1]);
});

test("calibrate keeps the default links for one rank and divides the cores by the threads of a rank", async () => {
  const contexts = synthesize(await openRanks(1), trueProfile);
  const calibrated = await calibrate({ contexts, dtypes: ["float32"], headDims: [32], repetitions: 1, cores: 4 });
  expect(calibrated.links).toEqual(baseProfile.links);
  expect(calibrated.cores).toEqual({ perNode: 4 });
  expect(calibrated.kernels.attend.float32!.halfSpeedHeadDim).toBe(0);
  const fourThreadProfile = await calibrate({
    contexts,
    dtypes: ["float32"],
    headDims: [32],
    repetitions: 1,
    cores: 8,
    threads: 4,
  });
  expect(fourThreadProfile.cores).toEqual({ perNode: 2 });
});

test("calibrate sends a profile with a name of any length and of any characters to all ranks", async () => {
  const contexts = synthesize(await openRanks(2), trueProfile);
  const name = "8 × 北京 😀 ".repeat(20_000);
  const calibrated = await calibrate({ contexts, dtypes: ["float32"], headDims: [32], repetitions: 1, cores: 2, name });
  expect(calibrated.name === name).toBe(true);
});

test("calibrate returns a valid profile for a real device", async () => {
  const calibrated = await calibrate({
    contexts: await openRanks(2),
    dtypes: ["bfloat16"],
    headDims: [16],
    repetitions: 1,
  });
  expect(calibrated.stepOverhead).toBeGreaterThan(0);
  expect(parseProfile(JSON.stringify(calibrated))).toEqual(calibrated);
  expect(Object.keys(calibrated.kernels.attend)).toEqual(["bfloat16"]);
});

test("calibrate rejects an empty list of contexts and unknown options", async () => {
  await expect(calibrate({ contexts: [] })).rejects.toThrow(
    "calibrate: contexts: expected a non-empty array, each element a Context returned by init, received []",
  );
  const unknownOptions = { contexts: [], ranks: 2 } as unknown as Parameters<typeof calibrate>[0];
  await expect(calibrate(unknownOptions)).rejects.toThrow('received "ranks"');
});

test.each([
  [{ dtypes: [] }, 'dtypes: expected a non-empty array, each element "float32", "bfloat16" or "float16", received []'],
  [{ dtypes: ["int8" as never] }, "dtypes: expected a non-empty array"],
  [{ headDims: [] }, "headDims: expected a non-empty array, each element an integer from 1 to 256, received []"],
  [{ headDims: [0.5] }, "headDims: expected a non-empty array"],
  [{ repetitions: 0 }, "repetitions: expected an integer from 1 to 1000, received 0"],
  [{ threads: 0 }, "threads: expected an integer ≥ 1, received 0"],
  [{ cores: Number.NaN }, "cores: expected a number > 0, received NaN"],
  [{ name: "" }, 'name: expected a string, received ""'],
])("calibrate rejects the options %j", async (options, expected) => {
  await expect(calibrate({ contexts: await openRanks(1), ...options })).rejects.toThrow(`calibrate: ${expected}`);
});
