import {
  type Context,
  type CrossEntropySpec,
  defineOp,
  formatShape,
  sameShape,
  scope,
  ShapeError,
  type Tensor,
  checkContext,
  checkSameSharding,
  checkTensor,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { meanOverMesh } from "./mean-over-mesh.ts";

// C classes, the last axis: logits [..,C], targets [..].

export const crossEntropyOptions = defineOptions("crossEntropy", {
  /** Rows with this target are ignored; the default is PyTorch's. Default -100. */
  ignoreIndex: option.integer({ default: -100 }),
  /**
   * Label smoothing (Szegedy et al. 2016): the target distribution is 1 − labelSmoothing at the target class, plus
   * labelSmoothing / C at every class. Default 0.
   */
  labelSmoothing: option.number({ min: 0, max: 1, default: 0 }),
});
/** Options of `crossEntropy`. */
export type CrossEntropyOptions = OptionsOf<typeof crossEntropyOptions>;

interface CrossEntropyInputs {
  readonly targets: Tensor;
  readonly spec: CrossEntropySpec;
}

const crossEntropyOp = defineOp({
  name: "crossEntropy",
  forward([logits]: [Tensor], { targets, spec }: CrossEntropyInputs) {
    const { device } = logits;
    const leadingShape = targets.shape;
    using rows = device.empty([2, targets.size], "float32");
    using losses = rowView(rows, 0, leadingShape);
    using counts = rowView(rows, 1, leadingShape);
    const lse = device.empty(leadingShape, "float32");
    if (logits.size > 0) device.kernels.crossEntropy({ loss: losses, lse, counted: counts }, logits, targets, spec);
    return { output: sumRows(rows), saved: { logits, targets: targets.detach(), lse, spec } };
  },
  backward({ logits, targets, lse, spec }, dTerms) {
    const { device } = logits;
    const dx = device.empty(logits.shape, logits.dtype);
    using dSum = dTerms.slice(0, 0, 1);
    using dLoss = dSum.view({ shape: targets.shape, strides: targets.shape.map(() => 0) });
    if (dx.size > 0) device.kernels.crossEntropyBackward(dx, { x: logits, target: targets, lse }, dLoss, spec);
    return [dx];
  },
});

/** Returns row i of [2,N] in the shape of the targets. */
function rowView(rows: Tensor, i: number, shape: readonly number[]): Tensor {
  using row = rows.slice(0, i, i + 1);
  return row.reshape(shape);
}

/** Sums the losses and the counts of rows, [2,N] → [2]. */
export function sumRows(rows: Tensor): Tensor {
  const { device } = rows;
  using sums = device.empty([2, 1], "float32");
  if (rows.size === 0) device.kernels.fill(sums, 0);
  else if (rows.shape[1] === 1) device.kernels.copy(sums, rows);
  else device.kernels.reduce("sum", sums, rows);
  return sums.reshape([2]);
}

/**
 * Computes the cross-entropy of this rank's rows as a pair (sum, count) [2] float32, for `meanOverMesh`. Pairs of
 * micro-batches can be added. Arguments as in `crossEntropy`. Does not communicate.
 *
 * @example
 * ```ts
 * import { fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { crossEntropyTerms } from "@mosaic/nn";
 * using device = cpu();
 * using logits = fromArray(device, [0, 0, 5, 1], [2, 2]);
 * using terms = crossEntropyTerms(logits, fromArray(device, [1, -100], [2])); // the second row does not count
 * Array.from(await terms.read(), (value) => value.toFixed(4)); // => ["0.6931", "1.0000"]
 * ```
 * @throws As `crossEntropy`.
 */
export function crossEntropyTerms(logits: Tensor, targets: Tensor, options?: CrossEntropyOptions): Tensor {
  const { ignoreIndex, labelSmoothing } = crossEntropyOptions.parse(options);
  checkTensor("crossEntropy: logits", logits);
  checkTensor("crossEntropy: targets", targets);
  if (logits.rank < 1 || !sameShape(logits.shape.slice(0, -1), targets.shape) || logits.shape.at(-1) === 0) {
    throw new ShapeError({
      where: "crossEntropy",
      expected: "logits [..,C] with C ≥ 1 and targets [..]",
      received: `${formatShape(logits.shape)} and ${formatShape(targets.shape)}`,
      remedy: "put the classes on the last axis, and pass one class index per row",
    });
  }
  checkSameSharding("crossEntropy: targets", logits, targets);
  return crossEntropyOp([logits], { targets, spec: { smoothing: labelSmoothing, ignored: ignoreIndex } });
}

/**
 * Computes the mean cross-entropy −log softmax(logits)[target] over all rows of all ranks whose target is not
 * `ignoreIndex`: a scalar float32, equal on every rank and every mesh. See `meanOverMesh` for its gradient. Collective.
 * logits [..,C]: this rank's rows, of any dtype. targets [..]: class indices from 0 to C − 1, or `ignoreIndex`, in a
 * tensor of any dtype. Another number fails the device with a DeviceError.
 *
 * @example
 * ```ts
 * import { fromArray, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { crossEntropy } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using logits = fromArray(ctx, [0, 0, 5, 1, 2, 3], [3, 2]);
 * logits.requiresGrad = true;
 * using targets = fromArray(ctx, [1, -100, 1], [3]); // the second row does not count
 * using loss = crossEntropy(ctx, logits, targets);
 * loss.backward();
 * (await loss.item()).toFixed(4); // => "0.5032"
 * Array.from(await logits.grad!.read()).slice(0, 4); // => [0.25, -0.25, 0, 0]
 * ```
 * @throws ShapeError or OptionError for invalid arguments, and for logits and targets that are known to be sharded
 * differently.
 */
export function crossEntropy(ctx: Context, logits: Tensor, targets: Tensor, options?: CrossEntropyOptions): Tensor {
  checkContext("crossEntropy", ctx);
  return scope(() => meanOverMesh(ctx, crossEntropyTerms(logits, targets, options)));
}
