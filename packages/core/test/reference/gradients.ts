import { expect } from "vitest";
import { fromArray } from "../../src/creation.ts";
import type { Shape } from "../../src/shape.ts";
import { numel } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice } from "./device.ts";

/** Returns deterministic pseudo-random numbers in [low, high). */
export function values(count: number, seed = 1, [low, high]: readonly [number, number] = [-1, 1]): number[] {
  return Array.from({ length: count }, (_, i) => {
    const x = Math.sin((i + 1) * 12.9898 + seed * 78.233) * 43758.5453;
    return low + (high - low) * (x - Math.floor(x));
  });
}

export interface GradientCase {
  readonly shapes: readonly Shape[];
  readonly range?: readonly [number, number];
  readonly run: (...inputs: Tensor[]) => Tensor;
}

/**
 * Compares every gradient of `run` with central differences in float64. The loss is a weighted sum of the output. Also
 * checks that no device memory is leaked.
 */
export async function checkGradients({ shapes, range, run }: GradientCase): Promise<void> {
  const device = new ReferenceDevice({ double: true });
  const data = shapes.map((shape, i) => values(numel(shape), i + 1, range));
  const loss = async (inputs: readonly (readonly number[])[]): Promise<number> => {
    const tensors = inputs.map((each, i) => fromArray(device, each, shapes[i]!));
    using out = run(...tensors);
    const result = await device.values(out);
    for (const tensor of tensors) tensor.dispose();
    const weights = values(result.length, 99);
    return result.reduce((sum, value, i) => sum + value * weights[i]!, 0);
  };
  const leaves = data.map((each, i) => {
    const leaf = fromArray(device, each, shapes[i]!);
    leaf.requiresGrad = true;
    return leaf;
  });
  {
    using out = run(...leaves);
    using weights = fromArray(device, values(out.size, 99), out.shape);
    out.backward(weights);
  }
  for (const [i, leaf] of leaves.entries()) {
    const actualGradient = await device.values(leaf.grad!);
    expect(leaf.grad!.isContiguous).toBe(true);
    for (const j of data[i]!.keys()) {
      const step = 1e-5;
      const shiftInput = (offset: number) => data.map((each, n) => (n === i ? each.with(j, each[j]! + offset) : each));
      const slope = ((await loss(shiftInput(step))) - (await loss(shiftInput(-step)))) / (2 * step);
      expect(actualGradient[j], `input ${i}, element ${j}`).toBeCloseTo(slope, 6);
    }
  }
  for (const leaf of leaves) {
    leaf.grad!.dispose();
    leaf.dispose();
  }
  expect(device.memory().allocated, "bytes left").toBe(0);
}
