import { expect, test } from "vitest";
import { firstWrong, generator, onEveryIsa, sample } from "./sample.ts";

// Large operands, which several threads share; the conformance suite has small ones of every dtype and layout.

const [rows, width, count] = [700, 129, 50];

onEveryIsa("kernels of training", (device) => {
  const random = generator(1);
  const named = Array.from({ length: rows }, () => Math.floor(((random() + 1) / 2) * count));
  const hash = (values: Float32Array): number =>
    new Uint32Array(values.buffer, values.byteOffset, values.length).reduce(
      (sum, word) => (Math.imul(sum, 31) + word) | 0,
      0,
    );

  test("rows by index, added up in their order", async () => {
    const draw = generator(2);
    const index = sample(device(), [rows], { value: (i) => named[i]! });
    const table = sample(device(), [count, width], { value: draw });
    const x = sample(device(), [rows, width], { value: draw });
    using out = device().empty([rows, width], "float32");
    device().kernels.gatherRows(out, table.x, index.x);
    const gathered = x.values.map((_, i) => table.values[named[Math.floor(i / width)]! * width + (i % width)]!);
    expect(firstWrong(await out.read(), gathered, { tolerance: 0 })).toBeUndefined();
    using into = device().empty([count, width], "float32");
    device().kernels.fill(into, 0);
    device().kernels.scatterAddRows(into, x.x, index.x);
    // In float32 and in order, so to the last bit.
    const sums = new Float32Array(count * width);
    for (const [i, value] of x.values.entries()) {
      const at = named[Math.floor(i / width)]! * width + (i % width);
      sums[at] = sums[at]! + value;
    }
    expect(await into.read()).toEqual(sums);
  });

  test("cross-entropy", async () => {
    const draw = generator(3);
    const target = sample(device(), [rows], { value: (i) => named[i]! });
    const x = sample(device(), [rows, width], { value: () => 10 * draw() });
    const [loss, lse, counted] = [0, 1, 2].map(() => device().empty([rows], "float32")) as [never, never, never];
    const spec = { smoothing: 0, ignored: 7 };
    device().kernels.crossEntropy({ loss, lse, counted }, x.x, target.x, spec);
    using dLoss = device().empty([1], "float32");
    device().kernels.fill(dLoss, 1);
    using dx = device().empty([rows, width], "float32");
    device().kernels.crossEntropyBackward(dx, { x: x.x, target: target.x, lse }, dLoss.expand([rows]), spec);
    const wanted: number[] = [];
    const gradient: number[] = [];
    for (const [row, each] of named.entries()) {
      const line = x.values.slice(row * width, (row + 1) * width);
      const sum = Math.log(line.reduce((total, value) => total + Math.exp(value), 0));
      const counts = each === 7 ? 0 : 1;
      wanted.push(counts * (sum - line[each]!));
      gradient.push(...line.map((value, i) => counts * (Math.exp(value - sum) - (i === each ? 1 : 0))));
    }
    const magnitude = wanted.map(() => 20);
    expect(firstWrong(await device().read(loss), wanted, { tolerance: 2e-7, magnitude })).toBeUndefined();
    const ones = gradient.map(() => 1);
    expect(firstWrong(await dx.read(), gradient, { tolerance: 3e-6, magnitude: ones })).toBeUndefined();
  });

  test("dropout and steps have these very bits, on every instruction set and any number of threads", async () => {
    const draw = generator(4);
    const [p, g, m, v] = [0, 1, 2, 3].map(
      (i) => sample(device(), [90_001], { value: () => (i === 3 ? draw() ** 2 : draw()) }).x,
    );
    using out = device().empty([90_001], "float32");
    const spec = { probability: 0.1, seed: 2, stream: 3, offset: 2 ** 33 + 5, strides: [1] };
    device().kernels.dropout(out, p!, spec);
    const bits = [hash(await out.read())];
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
      bits.push(hash(await p!.read()));
    }
    expect(bits).toEqual([293955784, 1690198083, 667453924]);
  });
});
