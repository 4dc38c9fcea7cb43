import { checkDevice, checkTensor } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import { ShapeError } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { contiguousRows } from "../views.ts";

// E features, the last axis: x [..,E], weight and bias [E], statistics [..,1] float32.

type NormInputs = [x: Tensor, weight: Tensor | null, bias: Tensor | null];

function emptyStatistic(x: Tensor): Tensor {
  return x.device.empty(x.shape.with(-1, 1), "float32");
}

/** A float32 accumulator of zeros, if it is needed. */
function gradientAccumulator(of: Tensor | null, needed: boolean | undefined): Tensor | null {
  if (!of || !needed) return null;
  const zeros = of.device.empty(of.shape, "float32");
  of.device.kernels.fill(zeros, 0);
  return zeros;
}

/** Rounds an accumulator to its parameter's dtype; takes it. */
function castGradient(gradient: Tensor | null, of: Tensor | null): Tensor | null {
  if (!gradient || !of) return null;
  using taken = gradient;
  return taken.to(of.dtype);
}

const layerNormOp = defineOp({
  name: "layerNorm",
  forward([x, weight, bias]: NormInputs, epsilon: number) {
    const output = x.device.empty(x.shape, x.dtype);
    const stats = { mean: emptyStatistic(x), rstd: emptyStatistic(x) };
    x.device.kernels.layerNorm(output, x, { weight, bias, epsilon }, stats);
    return { output, saved: { x, weight, bias, ...stats } };
  },
  backward({ x, weight, bias, mean, rstd }, dOutput, [, needWeight, needBias]) {
    using dOut = contiguousRows(dOutput);
    const dx = x.device.empty(x.shape, x.dtype);
    const dWeight = gradientAccumulator(weight, needWeight);
    const dBias = gradientAccumulator(bias, needBias);
    x.device.kernels.layerNormBackward({ dx, dWeight, dBias }, x, dOut, weight, { mean, rstd });
    return [dx, castGradient(dWeight, weight), castGradient(dBias, bias)];
  },
});

const rmsNormOp = defineOp({
  name: "rmsNorm",
  forward([x, weight]: [Tensor, Tensor | null], epsilon: number) {
    const output = x.device.empty(x.shape, x.dtype);
    const rstd = emptyStatistic(x);
    x.device.kernels.rmsNorm(output, x, { weight, bias: null, epsilon }, { mean: null, rstd });
    return { output, saved: { x, weight, rstd } };
  },
  backward({ x, weight, rstd }, dOutput, [, needWeight]) {
    using dOut = contiguousRows(dOutput);
    const dx = x.device.empty(x.shape, x.dtype);
    const dWeight = gradientAccumulator(weight, needWeight);
    x.device.kernels.rmsNormBackward({ dx, dWeight, dBias: null }, x, dOut, weight, { mean: null, rstd });
    return [dx, castGradient(dWeight, weight)];
  },
});

export const normOptions = defineOptions("norm", {
  /** Added to the variance under the root. Default 1e-5 for layerNorm, 1e-6 for rmsNorm. */
  epsilon: option.number({ min: 0, optional: true }),
});
/** What normalisations take. */
export type NormOptions = OptionsOf<typeof normOptions>;

/** (x − mean) / √(variance + ε) · weight + bias over the last axis. Ba, Kiros and Hinton 2016. ε defaults to 1e-5. */
export function layerNorm(
  x: Tensor,
  weight: Tensor | null = null,
  bias: Tensor | null = null,
  options?: NormOptions,
): Tensor {
  const epsilon = checkNorm("layerNorm", x, [weight, bias], options) ?? 1e-5;
  using dense = contiguousRows(x);
  return layerNormOp([dense, weight, bias], epsilon);
}

/** x / √(mean of x² + ε) · weight over the last axis. Zhang and Sennrich 2019. ε defaults to 1e-6. */
export function rmsNorm(x: Tensor, weight: Tensor | null = null, options?: NormOptions): Tensor {
  const epsilon = checkNorm("rmsNorm", x, [weight], options) ?? 1e-6;
  using dense = contiguousRows(x);
  return rmsNormOp([dense, weight], epsilon);
}

/** Throws unless x has features that the parameters fit; returns the epsilon given, if any. */
// oxlint-disable-next-line max-params -- what a norm is called with, and its name
function checkNorm(
  where: string,
  x: Tensor,
  parameters: readonly (Tensor | null)[],
  options: NormOptions | undefined,
): number | undefined {
  checkTensor(where, x);
  const { epsilon } = normOptions.parse(options, where);
  if (x.rank === 0) throw new ShapeError({ where, expected: "x [..,E], features last", received: "[]" });
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
  return epsilon;
}
