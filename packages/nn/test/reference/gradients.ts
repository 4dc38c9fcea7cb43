import { type Context, fromArray, type Module, mul, sum, type Tensor } from "@mosaic/core";
import { expect } from "vitest";
import { numericalDerivative, generateNumbers, maxDifference } from "./numbers.ts";

/** A layer and its float64 reference, which maps x and the parameters, by name, to the output. */
export interface LayerCase {
  readonly module: Module;
  readonly forward: (x: Tensor) => Tensor;
  readonly shape: readonly number[];
  readonly reference: (x: readonly number[], parameters: Readonly<Record<string, readonly number[]>>) => number[];
}

/**
 * Checks the output against float64, and the gradients of Σ output · weights in x and in every parameter against finite
 * differences.
 */
export async function checkLayer(ctx: Context, { module, forward, shape, reference }: LayerCase): Promise<void> {
  const x = generateNumbers(
    shape.reduce((a, b) => a * b, 1),
    1,
  ).map((value) => Math.fround(2 * value));
  const parameters: Record<string, number[]> = {};
  for (const [i, [name, parameter]] of module.namedParameters().entries()) {
    parameters[name] = generateNumbers(parameter.size, 10 + i);
    ctx.device.write(parameter, parameters[name]);
  }
  using leaf = fromArray(ctx, x, shape);
  leaf.requiresGrad = true;
  using out = forward(leaf);
  const weights = generateNumbers(out.size, 5);
  using weight = fromArray(ctx, weights, out.shape);
  using weightedOutput = mul(out, weight);
  using loss = sum(weightedOutput);
  loss.backward();
  expect(maxDifference(await out.read(), reference(x, parameters))).toBeLessThan(2e-6);
  const total = (values: readonly number[]) => values.reduce((sum, value, i) => sum + value * weights[i]!, 0);
  const dx = numericalDerivative((each) => total(reference(each, parameters)), x);
  expect(maxDifference(await leaf.grad!.read(), dx), "x").toBeLessThan(1e-5);
  for (const [name, parameter] of module.namedParameters()) {
    const expected = numericalDerivative(
      (each) => total(reference(x, { ...parameters, [name]: each })),
      parameters[name]!,
    );
    expect(maxDifference(await parameter.grad!.read(), expected), name).toBeLessThan(1e-5);
  }
}

/** Returns x [..,in] times Wᵀ plus b, in float64. */
export function linear(x: readonly number[], weight: readonly number[], bias: readonly number[]): number[] {
  const [outFeatures, inFeatures] = [bias.length, weight.length / bias.length];
  return Array.from({ length: (x.length / inFeatures) * outFeatures }, (_, i) => {
    const [row, out] = [Math.floor(i / outFeatures) * inFeatures, i % outFeatures];
    let value = bias[out]!;
    for (let k = 0; k < inFeatures; k++) value += x[row + k]! * weight[out * inFeatures + k]!;
    return value;
  });
}

/** Applies a function to each row of `width` numbers. */
export function mapRows(x: readonly number[], width: number, f: (row: readonly number[]) => number[]): number[] {
  return Array.from({ length: x.length / width }, (_, i) => f(x.slice(i * width, (i + 1) * width))).flat();
}
