import {
  checkModule,
  defineOptions,
  formatShape,
  formatValue,
  type Module,
  MosaicError,
  option,
  OptionError,
  type OptionsOf,
  type ProcessGroup,
  ShapeError,
  type Tensor,
} from "@mosaic/core";
import { checkGradientsReduced } from "./optimizer-slot.ts";
import { getShard, listUnits } from "../sharding/flat-parameters.ts";

export const clipGradNormOptions = defineOptions("clipGradNorm", {
  /**
   * Whether to accept gradients that `reduceGradients` has not reduced over the ranks, whose norm differs by rank, for
   * ranks that train separate models. Otherwise such gradients are an OptionError on more than one rank. Default false.
   */
  allowLocalGradients: option.boolean({ default: false }),
});
/** Options of `clipGradNorm`. */
export type ClipGradNormOptions = OptionsOf<typeof clipGradNormOptions>;

/**
 * Scales all gradients by one factor so that their total norm is at most `maxNorm` (Pascanu et al. 2013). Returns the
 * norm before scaling, a scalar float32; the host waits for it only if it is read. After `reduceGradients`, gradients
 * are equal on all ranks, and so is their norm, so nothing is communicated; for a sharded model, one number is
 * all-reduced. With `maxNorm` Infinity, the norm is only measured. Gradients of parameters that do not require grad
 * (frozen) are ignored.
 *
 * @example
 * ```ts
 * import { fromArray, init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { clipGradNorm } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new Linear(ctx, 2, 1, { bias: false });
 * layer.weight.grad = fromArray(ctx, [3, 4], [1, 2]);
 * using norm = clipGradNorm(layer, 1);
 * await norm.item(); // => 5
 * Array.from(await layer.weight.grad.read(), (x) => x.toFixed(4)); // => ["0.6000", "0.8000"]
 * ```
 * @throws OptionError if `maxNorm` is not greater than 0, for a model without gradients, and for gradients that were not
 * reduced, which each rank would scale by another factor.
 */
export function clipGradNorm(model: Module, maxNorm: number, options?: ClipGradNormOptions): Tensor {
  checkModule("clipGradNorm", model);
  const { allowLocalGradients } = clipGradNormOptions.parse(options);
  if (!(typeof maxNorm === "number" && maxNorm > 0)) {
    throw new OptionError({ where: "clipGradNorm", expected: "maxNorm > 0", received: formatValue(maxNorm) });
  }
  const namedParameters = [...model.namedParameters()].map(([name, source]) => ({ name, source }));
  checkGradientsReduced("clipGradNorm", namedParameters, { allowLocalGradients, callName: "clipGradNorm" });
  // Gradients of frozen parameters are not reduced, so that their norm may differ by rank, and no step applies them.
  const parameters = model.parameters().filter(({ requiresGrad }) => requiresGrad);
  const unshardedGradients = parameters.flatMap((parameter) =>
    parameter.grad && !getShard(parameter) ? [parameter.grad] : [],
  );
  const shardedGradients = groupShardedGradients(parameters);
  const gradients = [...unshardedGradients, ...[...shardedGradients.values()].flat()];
  const [firstGradient] = gradients;
  if (!firstGradient) {
    throw new OptionError({
      where: "clipGradNorm",
      expected: "gradients",
      received: "none",
      remedy: "call clipGradNorm between backward and zeroGrad",
    });
  }
  const { device } = firstGradient;
  const norm = shardedGradients.size > 0 ? shardedNorm(unshardedGradients, shardedGradients) : l2Norm(gradients);
  if (maxNorm === Infinity) return norm;
  using factor = device.empty([], "float32");
  // As in PyTorch, the factor is maxNorm / (norm + 1e-6), but at most 1. min(1, x) is computed as −max(−1, −x).
  using negatedMaxNorm = device.empty([], "float32");
  device.kernels.fill(negatedMaxNorm, -maxNorm);
  device.kernels.scalar("add", factor, norm, 1e-6);
  device.kernels.binary("div", factor, negatedMaxNorm, factor);
  device.kernels.scalar("max", factor, factor, -1);
  device.kernels.scalar("mul", factor, factor, -1);
  for (const gradient of gradients) {
    if (gradient.size > 0) device.kernels.binary("mul", gradient, gradient, factor);
  }
  return norm;
}

type GradientsByGroup = ReadonlyMap<ProcessGroup, readonly Tensor[]>;

/** Returns this rank's parts of the sharded gradients, by the process group over which they are sharded. */
function groupShardedGradients(parameters: readonly Tensor[]): GradientsByGroup {
  const gradients = new Map<ProcessGroup, Tensor[]>();
  for (const parameter of parameters) {
    const { unit, tensor } = getShard(parameter) ?? {};
    if (!unit || !tensor?.grad) continue;
    gradients.set(unit.group, [...(gradients.get(unit.group) ?? []), tensor.grad]);
  }
  return gradients;
}

/**
 * Returns the norm of gradients that every rank holds as a whole and of sharded gradients. The squares of shards are
 * summed over the ranks of their group.
 */
function shardedNorm(unshardedGradients: readonly Tensor[], shardedGradients: GradientsByGroup): Tensor {
  const squaredNorms = [...shardedGradients].map(([group, gradients]) => {
    const squaredNorm = squaredL2Norm(gradients);
    group.allReduce(squaredNorm, "sum", { label: "clipGradNorm" }).wait();
    return squaredNorm;
  });
  if (unshardedGradients.length > 0) squaredNorms.push(squaredL2Norm(unshardedGradients));
  const [norm, ...otherSquaredNorms] = squaredNorms as [Tensor, ...Tensor[]];
  const { kernels } = norm.device;
  for (const squaredNorm of otherSquaredNorms) {
    kernels.binary("add", norm, norm, squaredNorm);
    squaredNorm.dispose();
  }
  kernels.unary("sqrt", norm, norm);
  return norm;
}

function squaredL2Norm(gradients: readonly Tensor[]): Tensor {
  const norm = l2Norm(gradients);
  norm.device.kernels.unary("square", norm, norm);
  return norm;
}

/** Number of elements that one thread squares and sums at a time. */
const BLOCK_SIZE = 8192;

/**
 * Computes the norm of all gradients together, a scalar float32: the square root of the sum of all squares. Blocks of
 * every gradient are summed in parallel on all threads, followed by one sum over blocks.
 */
function l2Norm(gradients: readonly Tensor[]): Tensor {
  const { device } = gradients[0]!;
  const blockCounts = gradients.map(({ size }) => Math.ceil(size / BLOCK_SIZE));
  const numBlocks = blockCounts.reduce((sum, count) => sum + count, 0);
  using sumsOfSquares = device.empty([Math.max(1, numBlocks)], "float32");
  if (numBlocks === 0) device.kernels.fill(sumsOfSquares, 0);
  let blockIndex = 0;
  for (const inputGradient of gradients) {
    using gradient = inputGradient.contiguous();
    const numFullBlocks = Math.floor(gradient.size / BLOCK_SIZE);
    for (const [rows, length, offset] of [
      [numFullBlocks, BLOCK_SIZE, 0],
      [1, gradient.size - numFullBlocks * BLOCK_SIZE, numFullBlocks * BLOCK_SIZE],
    ] as const) {
      if (rows * length === 0) continue;
      using blockRows = gradient.view({
        shape: [rows, length],
        strides: [length, 1],
        offset: gradient.offset + offset,
      });
      using blockSumsOfSquares = sumsOfSquares.view({ shape: [rows], strides: [1], offset: blockIndex });
      device.kernels.rowDot(blockSumsOfSquares, blockRows, blockRows);
      blockIndex += rows;
    }
  }
  const norm = device.empty([], "float32");
  using sum = norm.view({ shape: [1], strides: [1] });
  if (sumsOfSquares.size === 1) device.kernels.copy(sum, sumsOfSquares);
  else device.kernels.reduce("sum", sum, sumsOfSquares);
  device.kernels.unary("sqrt", norm, norm);
  return norm;
}

/**
 * A loss or gradients are NaN or infinite. Thrown by optimizers with `errorIfNonFinite`.
 *
 * @example
 * ```ts
 * import { fromArray, init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { AdamW } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new Linear(ctx, 2, 1, { bias: false });
 * using optimizer = new AdamW(layer, { errorIfNonFinite: true });
 * layer.weight.grad = fromArray(ctx, [1, NaN], [1, 2]);
 * optimizer.step(); // measures, and does not wait
 * await optimizer.assertFinite(); // throws step 0: expected a finite loss and finite gradients, received the gradient of "weight"
 * ```
 */
export class NonFiniteError extends MosaicError {
  /** The step in which they were measured, counted from 0. */
  readonly step: number;
  /** Names of the parameters whose gradients are not finite, in the model's order. */
  readonly parameters: readonly string[];

  constructor(where: string, { step, loss, norms }: NonFiniteValues) {
    const descriptions = norms.map(({ name, norm }) => `the gradient of "${name}" has norm ${norm}`);
    const maxListedGradients = 5;
    const details = [
      ...(loss === undefined ? [] : [`the loss is ${loss}`]),
      ...descriptions.slice(0, maxListedGradients),
    ];
    const numOmitted = descriptions.length - maxListedGradients;
    const omittedText = numOmitted > 0 ? `, and ${numOmitted} more gradient${numOmitted === 1 ? "" : "s"}` : "";
    super({
      where: `${where}, step ${step}`,
      expected: "a finite loss and finite gradients",
      received: `${details.join(", ")}${omittedText}`,
      remedy: "lower the learning rate, clip gradients, or inspect the data of this step",
    });
    this.step = step;
    this.parameters = norms.map(({ name }) => name);
  }
}

interface NonFiniteValues {
  readonly step: number;
  readonly loss: number | undefined;
  readonly norms: readonly { readonly name: string; readonly norm: number }[];
}

interface NamedParameter {
  readonly name: string;
  /** The tensor that holds the gradient, and the model's parameter to which the gradient belongs (`source`). */
  readonly parameter: Tensor;
  readonly source: Tensor;
}

/** Measures the gradients of every step on the device, and records the first that are not finite. */
export class FiniteChecker {
  readonly #where: string;
  #failure: NonFiniteError | undefined;
  /** Resolves when all posted measurements have been checked. */
  pendingChecks: Promise<void> = Promise.resolve();

  constructor(where: string) {
    this.#where = where;
  }

  throwIfFailed(): void {
    if (this.#failure) throw this.#failure;
  }

  /** Posts the measurement of the current gradients and of the loss, without waiting for it. */
  postMeasurement(step: number, slots: readonly NamedParameter[], loss: Tensor | undefined): void {
    const where = `${this.#where}.step ${step}: loss`;
    loss?.assertNotDisposed(where);
    if (loss && loss.size !== 1) {
      throw new ShapeError({ where, expected: "a scalar", received: formatShape(loss.shape) });
    }
    const updatedSlots = slots.filter(({ parameter, source }) => source.requiresGrad && parameter.grad);
    const device = updatedSlots[0]?.parameter.device ?? loss?.device;
    if (!device) return;
    using measuredValues = device.empty([updatedSlots.length + 1], "float32");
    device.kernels.fill(measuredValues, 0);
    const writeMeasurement = (slotIndex: number, x: Tensor): void => {
      using target = measuredValues.view({ shape: x.shape, strides: x.shape.map(() => 1), offset: slotIndex });
      device.kernels.copy(target, x);
    };
    for (const [i, { parameter }] of updatedSlots.entries()) {
      using norm = l2Norm([parameter.grad!]);
      writeMeasurement(i, norm);
    }
    if (loss) writeMeasurement(updatedSlots.length, loss);
    // Each rank measures its part of a sharded gradient. The sum is not finite on any rank if one part is not finite.
    const groups = new Set(listUnits(updatedSlots.map(({ source }) => source)).map(({ group }) => group));
    for (const group of groups) group.allReduce(measuredValues, "sum", { label: "errorIfNonFinite" }).wait();
    const names = updatedSlots.map(({ name }) => name);
    const checkPromise = measuredValues.read().then(
      (values) => this.#checkValues(step, names, values),
      // A failure of the device is reported by the device itself.
      () => {},
    );
    this.pendingChecks = Promise.all([this.pendingChecks, checkPromise]).then(() => {});
  }

  #checkValues(step: number, names: readonly string[], values: Float32Array): void {
    if (values.every(Number.isFinite)) return;
    const loss = values[names.length]!;
    const norms = names.map((name, i) => ({ name, norm: values[i]! })).filter(({ norm }) => !Number.isFinite(norm));
    this.#failure ??= new NonFiniteError(this.#where, { step, loss: Number.isFinite(loss) ? undefined : loss, norms });
  }
}
