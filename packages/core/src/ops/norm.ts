import { checkDevice, checkTensor } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import { ShapeError } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf, type ResolvedOptionsOf } from "../options.ts";
import { rowSharding } from "../placement/sharding.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { contiguousRows, hasContiguousRows } from "../views.ts";

// Shapes: E features, the last axis; x [..,E], weight and bias [E], statistics [..,1] float32.

type NormInputs = [x: Tensor, weight: Tensor | null, bias: Tensor | null];

function allocateStatistic(x: Tensor): Tensor {
  return x.device.empty(x.shape.with(-1, 1), "float32");
}

/** Returns a float32 accumulator filled with zeros, or null if it is not needed. */
function createGradientAccumulator(parameter: Tensor | null, isNeeded: boolean | undefined): Tensor | null {
  if (!parameter || !isNeeded) return null;
  const zeros = parameter.device.empty(parameter.shape, "float32");
  parameter.device.kernels.fill(zeros, 0);
  return zeros;
}

/** Rounds an accumulator to its parameter's dtype. Takes ownership of the accumulator. */
function castGradient(gradient: Tensor | null, parameter: Tensor | null): Tensor | null {
  if (!gradient || !parameter) return null;
  using ownedGradient = gradient;
  return ownedGradient.to(parameter.dtype);
}

const layerNormOp = defineOp({
  name: "layerNorm",
  sharding: rowSharding,
  forward([x, weight, bias]: NormInputs, epsilon: number) {
    const output = x.device.empty(x.shape, x.dtype);
    const stats = { mean: allocateStatistic(x), rstd: allocateStatistic(x) };
    x.device.kernels.layerNorm(output, x, { weight, bias, epsilon }, stats);
    return { output, saved: { x, weight, bias, ...stats } };
  },
  backward({ x, weight, bias, mean, rstd }, dOutput, [, needsGradWeight, needsGradBias]) {
    using dOut = contiguousRows(dOutput);
    const dx = x.device.empty(x.shape, x.dtype);
    const dWeight = createGradientAccumulator(weight, needsGradWeight);
    const dBias = createGradientAccumulator(bias, needsGradBias);
    x.device.kernels.layerNormBackward({ dx, dWeight, dBias }, x, dOut, weight, { mean, rstd });
    return [dx, castGradient(dWeight, weight), castGradient(dBias, bias)];
  },
});

const rmsNormOp = defineOp({
  name: "rmsNorm",
  sharding: rowSharding,
  forward([x, weight]: [Tensor, Tensor | null], { epsilon, weightOffset }: RmsNormSettings) {
    const output = x.device.empty(x.shape, x.dtype);
    const rstd = allocateStatistic(x);
    using shiftedWeight = addWeightOffset(weight, weightOffset);
    x.device.kernels.rmsNorm(output, x, { weight: shiftedWeight ?? weight, bias: null, epsilon }, { mean: null, rstd });
    return { output, saved: { x, weight, rstd, weightOffset } };
  },
  backward({ x, weight, rstd, weightOffset }, dOutput, [, needsGradWeight]) {
    using dOut = contiguousRows(dOutput);
    const dx = x.device.empty(x.shape, x.dtype);
    const dWeight = createGradientAccumulator(weight, needsGradWeight);
    using shiftedWeight = addWeightOffset(weight, weightOffset);
    x.device.kernels.rmsNormBackward({ dx, dWeight, dBias: null }, x, dOut, shiftedWeight ?? weight, {
      mean: null,
      rstd,
    });
    return [dx, castGradient(dWeight, weight)];
  },
});

/**
 * Returns weight + offset in float32, because a 16-bit sum would be rounded. Null if the offset is 0 or there is no
 * weight.
 */
function addWeightOffset(weight: Tensor | null, offset: number): Tensor | null {
  if (!weight || offset === 0) return null;
  const shiftedWeight = weight.device.empty(weight.shape, "float32");
  weight.device.kernels.scalar("add", shiftedWeight, weight, offset);
  return shiftedWeight;
}

export const normOptions = defineOptions("layerNorm", {
  /** Added to the variance before the square root. Default 1e-5. */
  epsilon: option.number({ min: 0, default: 1e-5 }),
});
/** Options of `layerNorm`. */
export type NormOptions = OptionsOf<typeof normOptions>;

export const rmsNormOptions = defineOptions("rmsNorm", {
  /** Added to the mean of squares before the square root. Default 1e-6. */
  epsilon: option.number({ min: 0, default: 1e-6 }),
  /** Added to the weight in float32. 1 for Gemma, whose weights are stored as offsets from 1. Default 0. */
  weightOffset: option.oneOf([0, 1], { default: 0 }),
});
/** Options of `rmsNorm`. */
export type RmsNormOptions = OptionsOf<typeof rmsNormOptions>;
type RmsNormSettings = ResolvedOptionsOf<typeof rmsNormOptions>;

/**
 * Returns (x − mean) / √(variance + ε) · weight + bias over the last axis. Ba, Kiros and Hinton 2016. x [..,E], weight
 * and bias [E] or null → [..,E]. ε defaults to 1e-5. 16-bit dtypes are computed in float32 and rounded once.
 *
 * @example
 * ```ts
 * import { fromArray, layerNorm } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 3], [1, 2]);
 * using y = layerNorm(x, null, null, { epsilon: 0 });
 * Array.from(await y.read()); // => [-1, 1]
 * ```
 * @throws OptionError unless x is a Tensor, and weight and bias are Tensors or null; ShapeError for a scalar, or unless
 * weight and bias are [E].
 */
export function layerNorm(
  x: Tensor,
  weight: Tensor | null = null,
  bias: Tensor | null = null,
  options?: NormOptions,
): Tensor {
  const { epsilon } = normOptions.parse(options);
  checkNorm("layerNorm", x, weight, bias);
  using contiguousX = hasContiguousRows(x) ? null : contiguousRows(x);
  return layerNormOp([contiguousX ?? x, weight, bias], epsilon);
}

/**
 * Returns x / √(mean of x² + ε) · (weight + weightOffset) over the last axis. Zhang and Sennrich 2019. ε defaults to
 * 1e-6. 16-bit dtypes are computed in float32 and rounded once.
 *
 * @example
 * ```ts
 * import { fromArray, rmsNorm, zeros } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [3, 4], [1, 2]);
 * using weight = zeros(device, [2]);
 * using y = rmsNorm(x, weight, { weightOffset: 1, epsilon: 0 });
 * Array.from(await y.read(), (value) => value.toFixed(3)); // => ["0.849", "1.131"]
 * ```
 */
export function rmsNorm(x: Tensor, weight: Tensor | null = null, options?: RmsNormOptions): Tensor {
  const settings = rmsNormOptions.parse(options);
  checkNorm("rmsNorm", x, weight);
  using contiguousX = hasContiguousRows(x) ? null : contiguousRows(x);
  return rmsNormOp([contiguousX ?? x, weight], settings);
}

/** Throws unless the parameters match the last axis of x. */
function checkNorm(where: string, x: Tensor, ...parameters: readonly (Tensor | null)[]): void {
  checkTensor(where, x);
  if (x.rank === 0)
    throw new ShapeError({ where, expected: "x [..,E] with the features as the last axis", received: "[]" });
  for (const parameter of parameters) {
    if (parameter === null) continue;
    checkTensor(where, parameter);
    checkDevice(where, x, parameter);
    if (parameter.rank === 1 && parameter.shape[0] === x.shape.at(-1)) continue;
    throw new ShapeError({
      where,
      expected: `weight and bias of shape [${x.shape.at(-1)}] for x ${formatShape(x.shape)}`,
      received: formatShape(parameter.shape),
    });
  }
}
