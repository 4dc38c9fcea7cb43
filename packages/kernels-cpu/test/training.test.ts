import { expect, test } from "vitest";
import { findMismatch, createGenerator, onEveryIsa, createSample } from "./sample.ts";

// Large operands, which are split among several threads; the conformance suite has small ones of every dtype and
// layout.

const [rows, width, count] = [700, 129, 50];

onEveryIsa("training kernels", (device) => {
  const random = createGenerator(1);
  const rowIndices = Array.from({ length: rows }, () => Math.floor(((random() + 1) / 2) * count));
  const hashBits = (values: Float32Array): number =>
    new Uint32Array(values.buffer, values.byteOffset, values.length).reduce(
      (sum, word) => (Math.imul(sum, 31) + word) | 0,
      0,
    );

  test("gathers rows by index, and adds up rows in their order", async () => {
    const drawValue = createGenerator(2);
    const index = createSample(device(), [rows], { value: (i) => rowIndices[i]! });
    const table = createSample(device(), [count, width], { value: drawValue });
    const x = createSample(device(), [rows, width], { value: drawValue });
    using out = device().empty([rows, width], "float32");
    device().kernels.gatherRows(out, table.x, index.x);
    const gathered = x.values.map((_, i) => table.values[rowIndices[Math.floor(i / width)]! * width + (i % width)]!);
    expect(findMismatch(await out.read(), gathered, { tolerance: 0 })).toBeUndefined();
    using gradientTable = device().empty([count, width], "float32");
    device().kernels.fill(gradientTable, 0);
    device().kernels.scatterAddRows(gradientTable, x.x, index.x);
    // Sums are float32 and in order, so the comparison is exact.
    const sums = new Float32Array(count * width);
    for (const [i, value] of x.values.entries()) {
      const tableOffset = rowIndices[Math.floor(i / width)]! * width + (i % width);
      sums[tableOffset] = sums[tableOffset]! + value;
    }
    expect(await gradientTable.read()).toEqual(sums);
  });

  test("computes cross-entropy and its gradient", async () => {
    const drawValue = createGenerator(3);
    const target = createSample(device(), [rows], { value: (i) => rowIndices[i]! });
    const x = createSample(device(), [rows, width], { value: () => 10 * drawValue() });
    const [loss, lse, counted] = [0, 1, 2].map(() => device().empty([rows], "float32")) as [never, never, never];
    const spec = { smoothing: 0, ignored: 7 };
    device().kernels.crossEntropy({ loss, lse, counted }, x.x, target.x, spec);
    using dLoss = device().empty([1], "float32");
    device().kernels.fill(dLoss, 1);
    using dx = device().empty([rows, width], "float32");
    device().kernels.crossEntropyBackward(dx, { x: x.x, target: target.x, lse }, dLoss.expand([rows]), spec);
    const expectedLosses: number[] = [];
    const gradient: number[] = [];
    for (const [row, label] of rowIndices.entries()) {
      const line = x.values.slice(row * width, (row + 1) * width);
      const sum = Math.log(line.reduce((total, value) => total + Math.exp(value), 0));
      const counts = label === 7 ? 0 : 1;
      expectedLosses.push(counts * (sum - line[label]!));
      gradient.push(...line.map((value, i) => counts * (Math.exp(value - sum) - (i === label ? 1 : 0))));
    }
    const magnitude = expectedLosses.map(() => 20);
    expect(findMismatch(await device().read(loss), expectedLosses, { tolerance: 2e-7, magnitude })).toBeUndefined();
    const unitMagnitude = gradient.map(() => 1);
    expect(findMismatch(await dx.read(), gradient, { tolerance: 3e-6, magnitude: unitMagnitude })).toBeUndefined();
  });

  test("computes dropout and optimizer steps to fixed bits, for all instruction sets and thread counts", async () => {
    const drawValue = createGenerator(4);
    const [p, g, m, v] = [0, 1, 2, 3].map(
      (i) => createSample(device(), [90_001], { value: () => (i === 3 ? drawValue() ** 2 : drawValue()) }).x,
    );
    using out = device().empty([90_001], "float32");
    const spec = { probability: 0.1, seed: 2, stream: 3, offset: 2 ** 33 + 5, strides: [1] };
    device().kernels.dropout(out, p!, spec);
    const bits = [hashBits(await out.read())];
    const step = {
      rate: 0.1,
      beta1: 0.9,
      beta2: 0.99,
      epsilon: 1e-8,
      decay: 0.1,
      correction1: 0.3,
      correction2: 0.2,
      mix: 0.1,
    };
    for (const kind of ["adamW", "scheduleFree"] as const) {
      device().kernels.adam({ parameter: p!, first: m!, second: v! }, g!, { ...step, kind });
      bits.push(hashBits(await p!.read()));
    }
    expect(bits).toEqual([293955784, 1690198083, 667453924]);
  });
});
