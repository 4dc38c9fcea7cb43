import { expect, test } from "vitest";
import { attention } from "../src/attention/attention.ts";
import { checkpoint } from "../src/autograd/checkpoint.ts";
import type { Context } from "../src/context.ts";
import { rand } from "../src/random.ts";
import { OutOfMemoryError } from "../src/errors.ts";
import { init } from "../src/init.ts";
import { add, div, mul, sub } from "../src/ops/pointwise.ts";
import { concatenate, roll, stack } from "../src/ops/concatenate.ts";
import { gated } from "../src/ops/gated.ts";
import { linear } from "../src/ops/linear.ts";
import { matmul } from "../src/ops/matmul.ts";
import { layerNorm } from "../src/ops/norm.ts";
import { max, mean, min, sum } from "../src/ops/reduction.ts";
import { softmax } from "../src/ops/softmax.ts";
import { layoutOf } from "../src/placement/layout.ts";
import { unshard } from "../src/placement/shard.ts";
import type { Tensor } from "../src/tensor.ts";
import { ReferenceDevice } from "./reference/index.ts";

/** A device whose allocations fail after a given number. */
class LimitedDevice extends ReferenceDevice {
  allocationsLeft = Infinity;

  override empty(...allocateArgs: Parameters<ReferenceDevice["empty"]>): Tensor {
    if (this.allocationsLeft-- <= 0) throw new OutOfMemoryError({ where: "empty", received: "nothing left" });
    return super.empty(...allocateArgs);
  }
}

interface AllocationCase {
  readonly shapes: readonly (readonly number[])[];
  run(x: readonly Tensor[], ctx: Context): Tensor;
}

function transposeInput(x: Tensor): Tensor {
  using view = x.transpose(0, 1);
  return view.contiguous();
}

const matrixShape = [3, 4];
const heads = [1, 2, 3, 4];
const rows = layoutOf({ mesh: { sp: 1 }, axes: [], length: 3 });
const cases: Readonly<Record<string, AllocationCase>> = {
  add: { shapes: [matrixShape, [4]], run: ([a, b]) => add(a!, b!) },
  "add, to itself": { shapes: [matrixShape], run: ([a]) => add(a!, a!) },
  sub: { shapes: [matrixShape, matrixShape], run: ([a, b]) => sub(a!, b!) },
  mul: { shapes: [matrixShape, [4]], run: ([a, b]) => mul(a!, b!) },
  div: { shapes: [[4], matrixShape], run: ([a, b]) => div(a!, b!) },
  concatenate: { shapes: [matrixShape, matrixShape], run: ([a, b]) => concatenate([a!, b!], 0) },
  stack: { shapes: [matrixShape, matrixShape], run: ([a, b]) => stack([a!, b!], 1) },
  roll: { shapes: [matrixShape], run: ([x]) => roll(x!, -1, 1) },
  linear: { shapes: [matrixShape, [2, 4], [2]], run: ([x, w, b]) => linear(x!, w!, b) },
  "linear, a gate": {
    shapes: [matrixShape, [2, 4], [3, 2]],
    run: ([x, w, gate]) => linear(x!, w!, null, "silu", gate),
  },
  gated: { shapes: [matrixShape, matrixShape], run: ([x, gate]) => gated(x!, gate!, "silu") },
  matmul: {
    shapes: [
      [2, 1, 3, 4],
      [2, 4, 2],
    ],
    run: ([a, b]) => matmul(a!, b!),
  },
  layerNorm: { shapes: [matrixShape, [4], [4]], run: ([x, w, b]) => layerNorm(x!, w, b) },
  sum: { shapes: [matrixShape], run: ([x]) => sum(x!, 1) },
  mean: { shapes: [matrixShape], run: ([x]) => mean(x!, 0) },
  max: { shapes: [matrixShape], run: ([x]) => max(x!, 0) },
  min: { shapes: [matrixShape], run: ([x]) => min(x!, 0) },
  softmax: { shapes: [matrixShape], run: ([x]) => softmax(x!, 0) },
  contiguous: { shapes: [matrixShape], run: ([x]) => transposeInput(x!) },
  attention: {
    shapes: [heads, heads, heads],
    run: ([q, k, v], ctx) => attention(ctx, q!, k!, v!, { queries: rows, keys: rows }),
  },
  checkpoint: {
    shapes: [matrixShape, matrixShape],
    run: ([a, b]) =>
      checkpoint(
        (x, y) => {
          using product = mul(x, y);
          return softmax(product);
        },
        a!,
        b!,
      ),
  },
};

/** Runs forward and backward with at most `maxAllocations` allocations. Returns whether they were sufficient. */
function runWithAllocations(
  ctx: Context,
  device: LimitedDevice,
  { allocationCase, maxAllocations }: { allocationCase: AllocationCase; maxAllocations: number },
): boolean {
  device.allocationsLeft = Infinity;
  const inputs = allocationCase.shapes.map((shape) => rand(device, shape, { low: 0.5 }));
  for (const x of inputs) x.requiresGrad = true;
  let out: Tensor | undefined;
  try {
    device.allocationsLeft = maxAllocations;
    out = allocationCase.run(inputs, ctx);
    using gradient = rand(device, out.shape);
    out.backward(gradient);
    return true;
  } catch (error) {
    expect(error).toBeInstanceOf(OutOfMemoryError);
    return false;
  } finally {
    out?.dispose();
    for (const x of inputs) {
      x.grad?.dispose();
      x.dispose();
    }
  }
}

test.each(Object.entries(cases))("%s frees all memory after any allocation fails", async (_, each) => {
  const device = new LimitedDevice();
  await using ctx = await init({ device, rank: 0, worldSize: 1 });
  let room = 0;
  for (; !runWithAllocations(ctx, device, { allocationCase: each, maxAllocations: room }); room++)
    expect(device.memory().allocated, `room ${room}`).toBe(0);
  expect(room).toBeGreaterThan(1);
  expect(device.memory().allocated).toBe(0);
});

test("unshard leaves no memory allocated, whether it succeeds or fails", async () => {
  const device = new LimitedDevice();
  await using ctx = await init({ device, rank: 0, worldSize: 1 });
  for (const room of [0, 1, 2]) {
    device.allocationsLeft = Infinity;
    const x = rand(device, [4, 3]);
    device.allocationsLeft = room;
    try {
      unshard(ctx, x, 1).dispose();
    } catch (error) {
      expect(error).toBeInstanceOf(OutOfMemoryError);
    }
    x.dispose();
    expect(device.memory().allocated, `room ${room}`).toBe(0);
  }
});

test("backward ignores a disposed gradient and creates a new one", async () => {
  const device = new LimitedDevice();
  using x = rand(device, [2]);
  x.requiresGrad = true;
  for (let step = 0; step < 2; step++) {
    using loss = sum(x);
    loss.backward();
    expect(Array.from(await x.grad!.read())).toEqual([1, 1]);
    x.grad!.dispose();
  }
});
