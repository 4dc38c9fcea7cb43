import { expect, test } from "vitest";
import { fitAttention, fitBytes, leastSquares } from "../../src/time/fit.ts";
import { attentionSeconds } from "../../src/time/kernel-time.ts";
import { type AttentionSpeed, profiles } from "../../src/index.ts";

const LAUNCH_SECONDS = 3e-6;
const shapes = [
  [64, 64],
  [64, 768],
  [768, 64],
  [256, 256],
  [768, 768],
] as const;

/** Returns the times of a machine of this speed for the shapes, each with a relative error. */
function createSamples(
  trueSpeed: AttentionSpeed,
  kind: "attend" | "attendBackward",
  headDims: readonly number[],
  noiseScale = 0,
) {
  const { kernels } = profiles["cpu-local"];
  const machine = {
    ...kernels,
    launch: LAUNCH_SECONDS,
    attend: { float32: trueSpeed },
    attendBackward: { float32: trueSpeed },
  };
  return headDims.flatMap((headDim) =>
    shapes.map(([rows, keys], i) => {
      const work = { dtype: "float32", numHeads: 2, rows, keys, headDim, pairs: rows * keys } as const;
      return {
        ...work,
        seconds: attentionSeconds(machine, kind, work) * (1 + (i % 2 === 0 ? noiseScale : -noiseScale)),
      };
    }),
  );
}

const machines: readonly AttentionSpeed[] = [
  { flops: 80e9, halfSpeedRows: 10, halfSpeedKeys: 40, halfSpeedHeadDim: 16 },
  { flops: 900e12, halfSpeedRows: 30, halfSpeedKeys: 160, halfSpeedHeadDim: 57 },
  { flops: 1e9, halfSpeedRows: 0, halfSpeedKeys: 0, halfSpeedHeadDim: 0 },
];

test.each(machines)("fitAttention recovers the speed %o", (trueSpeed) => {
  for (const [kind, operations] of [
    ["attend", 4],
    ["attendBackward", 10],
  ] as const) {
    const fitted = fitAttention(createSamples(trueSpeed, kind, [64, 128]), operations, LAUNCH_SECONDS);
    expect(fitted.flops / trueSpeed.flops).toBeCloseTo(1, 2);
    expect(fitted.halfSpeedKeys).toBeCloseTo(trueSpeed.halfSpeedKeys, 0);
    expect(fitted.halfSpeedRows).toBeCloseTo(trueSpeed.halfSpeedRows, 0);
    expect(fitted.halfSpeedHeadDim).toBeCloseTo(trueSpeed.halfSpeedHeadDim, 0);
  }
});

test("noise of 2 % in the samples changes the fitted time by less than 3 %", () => {
  const trueSpeed = machines[0]!;
  const noisyFit = fitAttention(createSamples(trueSpeed, "attend", [64, 128], 0.02), 4, LAUNCH_SECONDS);
  const [fittedSample] = createSamples(noisyFit, "attend", [96]).slice(-1);
  const [trueSample] = createSamples(trueSpeed, "attend", [96]).slice(-1);
  expect(Math.abs(fittedSample!.seconds / trueSample!.seconds - 1)).toBeLessThan(0.03);
});

test("with samples of one head size, halfSpeedHeadDim is 0 and its effect is part of flops", () => {
  const fitted = fitAttention(createSamples(machines[0]!, "attend", [64]), 4, LAUNCH_SECONDS);
  expect(fitted.halfSpeedHeadDim).toBe(0);
  expect(fitted.flops / 80e9).toBeCloseTo(64 / (64 + 16), 2);
});

test("fitBytes recovers the latency and the bandwidth of a line", () => {
  const samples = [1e3, 1e5, 1e7].map((bytes) => ({ bytes, seconds: 20e-6 + bytes / 5e9 }));
  const { latency, bandwidth } = fitBytes(samples);
  expect(latency * 1e6).toBeCloseTo(20, 6);
  expect(bandwidth / 1e9).toBeCloseTo(5, 6);
});

test("fits use the fastest sample if larger samples take no longer than smaller ones", () => {
  const noisySamples = [
    { bytes: 1e3, seconds: 2e-3 },
    { bytes: 1e6, seconds: 1e-3 },
  ];
  expect(fitBytes(noisySamples)).toEqual({ latency: 0, bandwidth: 1e9 });
  const tiles = [64, 128].map((rows) => ({ numHeads: 1, rows, keys: 64, headDim: 16, seconds: 1 / rows }));
  const maxFlops = 4 * 16 * 128 * 64 * 128;
  expect(fitAttention(tiles, 4, 0)).toEqual({
    flops: maxFlops,
    halfSpeedKeys: 0,
    halfSpeedRows: 0,
    halfSpeedHeadDim: 0,
  });
});

test("leastSquares returns no negative factors", () => {
  const rows = [
    [1, 1],
    [2, 1],
    [3, 1],
  ];
  expect(leastSquares(rows, [2, 4, 6]).factors).toEqual([expect.closeTo(2, 9), expect.closeTo(0, 9)]);
  const { factors } = leastSquares(rows, [1, 3, 5]);
  expect(factors[1]).toBe(0);
  expect(factors[0]).toBeGreaterThan(1);
});
