import {
  checkSameSharding,
  checkTensor,
  type Context,
  type CrossEntropySpec,
  defineOp,
  defineOptions,
  type Device,
  DTypeError,
  expectValue,
  formatShape,
  isGradEnabled,
  option,
  type OptionsOf,
  sameShape,
  scope,
  ShapeError,
  type Tensor,
} from "@mosaic/core";
import { crossEntropyOptions, sumRows } from "./cross-entropy.ts";
import { meanOverMesh } from "./mean-over-mesh.ts";

// N rows of E features, C classes: x [..,E], viewed as [N,E], weight [C,E], bias [C], targets [..]. Logits exist for R
// rows at a time.

/** The output projection of a language model: `Linear`, `TiedLinear`, `Embedding`, or its tensors. */
export interface OutputProjection {
  /** [C,E]. */
  readonly weight: Tensor;
  /** [C]. */
  readonly bias?: Tensor | null;
}

export const linearCrossEntropyOptions = defineOptions("linearCrossEntropy", {
  ...crossEntropyOptions.fields,
  /** Replaces logits by softcap · tanh(logits / softcap), as in Gemma 2. Default: none. */
  softcap: option.number({ above: 0, optional: true }),
  /**
   * Number of rows whose logits exist at a time. The weight and its gradient are read once per chunk. Default: chosen
   * so that a chunk has as many logits as x has elements, and at least 256.
   */
  chunkRows: option.integer({ min: 1, optional: true }),
});
/** Options of `linearCrossEntropy`. */
export type LinearCrossEntropyOptions = OptionsOf<typeof linearCrossEntropyOptions>;

interface ChunkSettings {
  readonly targets: Tensor;
  readonly spec: CrossEntropySpec;
  readonly softcap: number | undefined;
  readonly chunkRows: number;
  /** Whether the gradient of each input may be needed, for x, weight and bias. */
  readonly needsInputGrad: readonly boolean[];
}

/**
 * Gradients of the sum of losses, float32 [N,E], [C,E] and [C]. The forward computes them completely, except for the
 * factor that the backward receives.
 */
interface SumGradients {
  readonly dx: Tensor | null;
  readonly dWeight: Tensor | null;
  readonly dBias: Tensor | null;
}

/**
 * Computes loss and gradients in one pass over chunks of rows. The loss is a sum, so its incoming gradient is one
 * number, by which the backward multiplies the computed gradients. Otherwise the backward would have to recompute the
 * logits (Liger Kernel, Hsu et al. 2024).
 */
const linearCrossEntropyOp = defineOp({
  name: "linearCrossEntropy",
  forward([x, weight, bias]: [Tensor, Tensor, Tensor | null], settings: ChunkSettings) {
    const { device } = x;
    const [rows, numFeatures] = [settings.targets.size, weight.shape[1]!];
    using flatInput = x.reshape([rows, numFeatures]);
    using targets = settings.targets.reshape([rows]);
    using losses = device.empty([2, rows], "float32");
    const [needsGradX, needsGradWeight, needsGradBias] = settings.needsInputGrad;
    const gradients: SumGradients = {
      dx: needsGradX ? device.empty([rows, numFeatures], "float32") : null,
      dWeight: needsGradWeight ? zeros(device, weight.shape) : null,
      dBias: bias && needsGradBias ? zeros(device, bias.shape) : null,
    };
    using buffers = new LogitBuffers(weight, settings, { rows, dtype: x.dtype });
    for (let chunkStart = 0; chunkStart < rows; chunkStart += settings.chunkRows) {
      const range = [chunkStart, Math.min(chunkStart + settings.chunkRows, rows)] as const;
      using chunkInput = flatInput.slice(0, ...range);
      using chunkTargets = targets.slice(0, ...range);
      using result = losses.slice(1, ...range);
      using dx = gradients.dx?.slice(0, ...range) ?? null;
      accumulateChunk(
        { x: chunkInput, target: chunkTargets, weight, bias },
        { losses: result, ...gradients, dx },
        { buffers, settings },
      );
    }
    const shapes = [x, weight, ...(bias ? [bias] : [])].map(({ shape, dtype }) => ({ shape, dtype }));
    const terms = sumRows(losses);
    return { output: terms, saved: { ...gradients, count: terms.slice(0, 1, 2), shapes } };
  },
  backward({ dx, dWeight, dBias, count, shapes }, dTerms) {
    using factor = selectFactor(dTerms, count);
    return [dx, dWeight, dBias].map((gradient, i) => (gradient ? scaleGradient(gradient, factor, shapes[i]!) : null));
  },
});

/**
 * Returns the gradient of the sum, or 0 if no row counts: the mean over no rows has an infinite gradient, whose product
 * with a gradient of 0 is NaN.
 */
function selectFactor(dTerms: Tensor, count: Tensor): Tensor {
  const { device } = dTerms;
  using dSum = dTerms.slice(0, 0, 1);
  const factor = device.empty([1], "float32");
  // relu'(count) is 1 for positive counts and 0 for 0.
  device.kernels.unaryBackward("relu", factor, count, dSum);
  return factor;
}

function zeros(device: Device, shape: readonly number[]): Tensor {
  const out = device.empty(shape, "float32");
  device.kernels.fill(out, 0);
  return out;
}

/**
 * Returns gradient · factor in the shape and dtype of its input. Computed in place for float32, because nothing else
 * reads the gradient.
 */
function scaleGradient(gradient: Tensor, factor: Tensor, { shape, dtype }: Pick<Tensor, "shape" | "dtype">): Tensor {
  const { device } = gradient;
  using out = dtype === "float32" ? gradient.detach() : device.empty(gradient.shape, dtype);
  if (out.size > 0) device.kernels.binary("mul", out, gradient, factor);
  return out.reshape(shape);
}

/** Workspace of a chunk, allocated once for all chunks. */
class LogitBuffers implements Disposable {
  /** [R,C], of x's dtype. */
  readonly logits: Tensor;
  /** Logits / softcap, the input of tanh, of the same shape and dtype; null without a softcap. */
  readonly scaledLogits: Tensor | null;
  /** Gradient of the logits, of the same shape and dtype; null if no gradient is needed. */
  readonly dLogits: Tensor | null;
  /** [R] float32. */
  readonly lse: Tensor;
  /** The gradient 1 of each loss, [1] float32. */
  readonly unitGradient: Tensor;

  constructor(weight: Tensor, settings: ChunkSettings, { rows, dtype }: { rows: number; dtype: Tensor["dtype"] }) {
    const { device } = weight;
    const length = Math.min(settings.chunkRows, rows);
    const createMatrix = () => device.empty([length, weight.shape[0]!], dtype);
    this.logits = createMatrix();
    this.scaledLogits = settings.softcap === undefined ? null : createMatrix();
    this.dLogits = settings.needsInputGrad.includes(true) ? createMatrix() : null;
    this.lse = device.empty([length], "float32");
    this.unitGradient = device.empty([1], "float32");
    device.kernels.fill(this.unitGradient, 1);
  }

  [Symbol.dispose](): void {
    for (const buffer of [this.logits, this.scaledLogits, this.dLogits, this.lse, this.unitGradient]) buffer?.dispose();
  }
}

interface ChunkInputs {
  readonly x: Tensor;
  readonly target: Tensor;
  readonly weight: Tensor;
  readonly bias: Tensor | null;
}

/** Computes losses and counts [2,R] of a chunk of rows. Writes its dx, and adds to dWeight and dBias. */
function accumulateChunk(
  inputs: ChunkInputs,
  outputs: SumGradients & { readonly losses: Tensor },
  { buffers, settings }: { readonly buffers: LogitBuffers; readonly settings: ChunkSettings },
): void {
  const { x, target, weight, bias } = inputs;
  const { kernels } = x.device;
  const { spec, softcap } = settings;
  const rows = target.size;
  using logits = buffers.logits.slice(0, 0, rows);
  using transposedWeight = weight.transpose(0, 1);
  if (bias) kernels.copy(logits, bias);
  kernels.matmul(logits, x, transposedWeight, bias !== null);
  using scaledLogits = buffers.scaledLogits?.slice(0, 0, rows) ?? null;
  if (scaledLogits && softcap !== undefined) {
    kernels.scalar("mul", scaledLogits, logits, 1 / softcap);
    kernels.unary("tanh", logits, scaledLogits);
    kernels.scalar("mul", logits, logits, softcap);
  }
  using lse = buffers.lse.slice(0, 0, rows);
  using loss = viewRow(outputs.losses, 0);
  using countedRow = viewRow(outputs.losses, 1);
  kernels.crossEntropy({ loss, lse, counted: countedRow }, logits, target, spec);
  if (!buffers.dLogits) return;
  using dCappedLogits = buffers.dLogits.slice(0, 0, rows);
  using dLoss = buffers.unitGradient.view({ shape: [rows], strides: [0] });
  kernels.crossEntropyBackward(dCappedLogits, { x: logits, target, lse }, dLoss, spec);
  // The logits are no longer needed, so their memory is reused for the gradient with respect to the uncapped logits.
  if (scaledLogits) kernels.unaryBackward("tanh", logits, scaledLogits, dCappedLogits);
  addGradients(inputs, outputs, scaledLogits ? logits : dCappedLogits);
}

function addGradients({ x, weight }: ChunkInputs, { dx, dWeight, dBias }: SumGradients, dLogits: Tensor): void {
  const { device } = x;
  if (dx) device.kernels.matmul(dx, dLogits, weight, false);
  using transposedDLogits = dLogits.transpose(0, 1);
  if (dWeight) device.kernels.matmul(dWeight, transposedDLogits, x, true);
  if (!dBias) return;
  using sum = device.empty([1, dBias.size], "float32");
  using row = sum.reshape([dBias.size]);
  if (dLogits.shape[0] === 1) device.kernels.copy(sum, dLogits);
  else device.kernels.reduce("sum", sum, dLogits);
  device.kernels.binary("add", dBias, dBias, row);
}

/** Returns row i of [2,R], as [R]. */
function viewRow(lossRows: Tensor, i: number): Tensor {
  using row = lossRows.slice(0, i, i + 1);
  return row.reshape([lossRows.shape[1]!]);
}

/**
 * Computes `crossEntropyTerms` of the logits x · weightᵀ + bias, which never exist as a whole: the pair (sum, count)
 * [2] float32 of this rank's rows, for `meanOverMesh`. Arguments as in `linearCrossEntropy`. Does not communicate.
 *
 * @example
 * ```ts
 * import { fromArray, init, Linear, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { linearCrossEntropyTerms } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using head = new Linear(ctx, 8, 100);
 * using x = randn(ctx, [2, 8]);
 * using terms = linearCrossEntropyTerms(x, head, fromArray(ctx, [7, -100], [2]));
 * (await terms.read())[1]; // => 1
 * ```
 * @throws As `linearCrossEntropy`.
 */
export function linearCrossEntropyTerms(
  x: Tensor,
  head: OutputProjection,
  targets: Tensor,
  options?: LinearCrossEntropyOptions,
): Tensor {
  const { ignoreIndex, labelSmoothing, softcap, chunkRows } = linearCrossEntropyOptions.parse(options);
  const { weight, bias = null } = checkInputs(x, head, targets);
  const [numClasses, numFeatures] = weight.shape as [number, number];
  const inputs: [Tensor, Tensor, Tensor | null] = [x, weight, bias];
  return linearCrossEntropyOp(inputs, {
    targets,
    spec: { smoothing: labelSmoothing, ignored: ignoreIndex },
    softcap,
    chunkRows: chunkRows ?? Math.max(256, Math.ceil((targets.size * numFeatures) / numClasses)),
    needsInputGrad: inputs.map((each) => isGradEnabled() && each !== null && each.gradientEdge() !== null),
  });
}

function checkInputs(x: Tensor, head: OutputProjection, targets: Tensor): OutputProjection {
  const where = "linearCrossEntropy";
  checkTensor(`${where}: x`, x);
  checkTensor(`${where}: targets`, targets);
  const isHeadObject = typeof head === "object" && head !== null;
  expectValue(`${where}: head`, isHeadObject, "a Linear, a TiedLinear, an Embedding, or { weight, bias }", head);
  const { weight, bias = null } = head;
  checkTensor(`${where}: weight`, weight);
  if (bias !== null) checkTensor(`${where}: bias`, bias);
  const [numClasses, numFeatures] = weight.shape;
  const haveMatchingRows = x.rank >= 1 && sameShape(x.shape, [...targets.shape, numFeatures ?? -1]);
  const hasValidHead = weight.rank === 2 && numClasses! > 0 && (bias === null || sameShape(bias.shape, [numClasses!]));
  if (!haveMatchingRows || !hasValidHead) {
    const shapes = [x, weight, ...(bias ? [bias] : []), targets].map(({ shape }) => formatShape(shape));
    throw new ShapeError({
      where,
      expected: "x [..,E], weight [C,E] with C ≥ 1, bias [C] and targets [..]",
      received: shapes.join(", "),
      remedy: "pass the input of the output projection, and one class index per row",
    });
  }
  checkSameSharding(`${where}: targets`, x, targets);
  for (const operand of [weight, ...(bias ? [bias] : [])]) {
    if (operand.dtype === x.dtype) continue;
    const remedy = "convert one operand with to(dtype)";
    throw new DTypeError({
      where,
      expected: `operands of the same dtype, ${x.dtype}`,
      received: operand.dtype,
      remedy,
    });
  }
  return { weight, bias };
}

/**
 * Computes the mean cross-entropy of the logits x · weightᵀ + bias over all rows of all ranks whose target is not
 * `ignoreIndex`. Equivalent to `crossEntropy(ctx, head.forward(x), targets)` without storing all logits, which take
 * most of the memory of training at a vocabulary of 128 k. Logits and their gradients exist for `chunkRows` rows at a
 * time. The forward also computes the gradients of x, weight and bias, in float32, and keeps them for the backward.
 * Returns a scalar float32, equal on every rank and every mesh; see `meanOverMesh`. Collective.
 *
 * x [..,E], this rank's rows; head: weight [C,E] and bias [C] of the same dtype; targets [..] as in `crossEntropy`.
 *
 * @example
 * ```ts
 * import { fromArray, init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { crossEntropy, Embedding, linearCrossEntropy, TiedLinear } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using embed = new Embedding(ctx, 1000, 8);
 * using head = new TiedLinear(embed);
 * using x = randn(ctx, [2, 3, 8]);
 * using targets = fromArray(ctx, [1, 5, -100, 7, 2, 999], [2, 3]); // the third does not count
 * using loss = linearCrossEntropy(ctx, x, head, targets);
 * loss.backward();
 * using logits = head.forward(x);
 * using same = crossEntropy(ctx, logits, targets);
 * Math.abs((await loss.item()) - (await same.item())) < 1e-5; // => true
 * embed.weight.grad?.shape; // => [1000, 8]
 * ```
 * @throws ShapeError, DTypeError or OptionError for invalid arguments.
 */
// oxlint-disable-next-line max-params -- what crossEntropy takes, with x and head for the logits
export function linearCrossEntropy(
  ctx: Context,
  x: Tensor,
  head: OutputProjection,
  targets: Tensor,
  options?: LinearCrossEntropyOptions,
): Tensor {
  return scope(() => meanOverMesh(ctx, linearCrossEntropyTerms(x, head, targets, options)));
}
