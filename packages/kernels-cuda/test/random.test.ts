import "./emulated.ts";
import type { RandomSpec } from "@mosaic/core";
import { afterAll, expect, test } from "vitest";
import { type CudaDevice, cuda } from "../src/index.ts";

const device: CudaDevice = cuda();
afterAll(() => device[Symbol.dispose]());

async function randomWords(spec: RandomSpec, count: number): Promise<Uint32Array> {
  using x = device.empty([count], "float32");
  device.kernels.random(x, spec);
  return new Uint32Array((await x.read()).buffer);
}

const hash = (words: Uint32Array): number => words.reduce((sum, word) => (Math.imul(sum, 31) + word) | 0, 0);

// The same numbers as in packages/kernels-cpu/test/random.test.ts: a program with a given seed starts with the same
// parameters on both devices.
test("random numbers have the same bits as on the CPU device", async () => {
  const normal: RandomSpec = { kind: "normal", mean: 0, std: 1, seed: 42, stream: 3 };
  expect(hash(await randomWords(normal, 100_003))).toBe(-1_706_756_207);
});

test("random numbers match the published Philox4x32-10 vectors of Random123", async () => {
  const uniform: RandomSpec = { kind: "uniform", low: 0, high: 1, seed: 0, stream: 0 };
  const values = new Float32Array((await randomWords(uniform, 4)).buffer);
  expect(Array.from(values, (value) => (value * 2 ** 24).toString(16))).toEqual([
    "6627e8",
    "e169c5",
    "bc57ac",
    "9b00db",
  ]);
});
