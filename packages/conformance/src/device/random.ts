import type { Device, RandomSpec } from "@mosaic/core";
import { type Case, check, checkEqual } from "../check.ts";
import { roundTo } from "../oracle/numbers.ts";
import { type MakeDevice, withDevice, allocate } from "./tensors.ts";

const uniform: RandomSpec = { kind: "uniform", low: -2, high: 3, seed: 5, stream: 9 };
const normal: RandomSpec = { kind: "normal", mean: 1, std: 2, seed: 5, stream: 9 };
const SAMPLE_SIZE = 20_000;

/** Returns cases of random: its distributions, and the inputs on which an element may depend. */
export function rngCases(make: MakeDevice): Case[] {
  return [
    { name: "random: distributions", run: () => withDevice(make, checkDistributions) },
    { name: "random: element i depends only on seed, stream and i", run: () => withDevice(make, checkIndependence) },
  ];
}

async function drawSample(device: Device, spec: RandomSpec, count: number = SAMPLE_SIZE): Promise<Float32Array> {
  using out = allocate(device, [count]);
  device.kernels.random(out, spec);
  return await out.read();
}

/**
 * Checks moments to five standard deviations of the estimates: one false alarm in a million. The random numbers are the
 * same in every run.
 */
async function checkDistributions(device: Device): Promise<void> {
  const uniformSample = await drawSample(device, uniform);
  const outlier = uniformSample.find((x) => !(x >= -2 && x < 3));
  check(outlier === undefined, `expected uniform numbers ≥ -2 and < 3, received ${outlier}`);
  checkMoments(uniformSample, { mean: 0.5, std: 5 / Math.sqrt(12), kurtosis: 1.8 });
  checkMoments(await drawSample(device, normal), { mean: 1, std: 2, kurtosis: 3 });
}

function checkMoments(x: Float32Array, expected: { mean: number; std: number; kurtosis: number }): void {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
  const computeMoment = (power: number) => x.reduce((sum, value) => sum + (value - mean) ** power, 0) / x.length;
  const { std, kurtosis } = expected;
  const fiveSigma = 5 / Math.sqrt(x.length);
  const checkMoment = (name: string, moment: number, [value, tolerance]: readonly [number, number]): void =>
    check(Math.abs(moment - value) < tolerance, `expected ${name} ${value} ± ${tolerance}, received ${moment}`);
  checkMoment("mean", mean, [expected.mean, fiveSigma * std]);
  checkMoment("variance", computeMoment(2), [std ** 2, fiveSigma * std ** 2 * Math.sqrt(kurtosis - 1)]);
  // The standard deviation of x⁴ is √96 for standard normal numbers, and less for uniform ones.
  checkMoment("kurtosis", computeMoment(4) / std ** 4, [kurtosis, fiveSigma * Math.sqrt(96)]);
}

async function checkIndependence(device: Device): Promise<void> {
  for (const spec of [uniform, normal]) {
    const fullSample = await drawSample(device, spec);
    checkEqual(await drawSample(device, spec, 1001), fullSample.subarray(0, 1001), "the same seed, fewer numbers");
    using reshapedOut = allocate(device, [4, 5, 50], { storageOrder: "reversed" });
    device.kernels.random(reshapedOut, spec);
    checkEqual(await reshapedOut.read(), fullSample.subarray(0, 1000), "the same seed, a different shape and strides");
    using bfloat16Out = allocate(device, [1000], { dtype: "bfloat16" });
    device.kernels.random(bfloat16Out, spec);
    const roundedSample = fullSample.subarray(0, 1000).map((x) => roundTo(x, "bfloat16"));
    checkEqual(await bfloat16Out.read(), roundedSample, "the same seed, rounded");
    for (const otherSpec of [
      { ...spec, seed: 6 },
      { ...spec, stream: 10 },
    ]) {
      const numEqualValues = (await drawSample(device, otherSpec)).filter((x, i) => x === fullSample[i]).length;
      check(
        numEqualValues < SAMPLE_SIZE / 1000,
        `expected fewer than ${SAMPLE_SIZE / 1000} equal numbers for a different seed or stream, received ${numEqualValues}`,
      );
    }
  }
}
