import { type Module, OptionError, type Tensor, checkModule, formatValue } from "@mosaic/core";

/**
 * Scales all gradients by one factor so that together they are no longer than `maxNorm` (Pascanu et al. 2013), and
 * returns how long they were: a scalar float32 that nobody waits for unless it is read. After `reduceGradients`, gradients
 * are equal on all ranks, and so is their norm: nothing is sent. Infinity only measures.
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
 * @throws OptionError for a norm that is not more than 0, or a model without gradients.
 */
export function clipGradNorm(model: Module, maxNorm: number): Tensor {
  checkModule("clipGradNorm", model);
  if (!(typeof maxNorm === "number" && maxNorm > 0)) {
    throw new OptionError({ where: "clipGradNorm", expected: "maxNorm > 0", received: formatValue(maxNorm) });
  }
  const gradients = [...new Set(model.parameters())].flatMap(({ grad }) => (grad ? [grad] : []));
  const [first] = gradients;
  if (!first) {
    throw new OptionError({
      where: "clipGradNorm",
      expected: "gradients",
      received: "none",
      remedy: "call it between backward and zeroGrad",
    });
  }
  const { device } = first;
  const norm = normOf(gradients);
  if (maxNorm === Infinity) return norm;
  using factor = device.empty([], "float32");
  // As PyTorch: maxNorm / (norm + 1e-6), but never more than 1; min(1, x) is −max(−1, −x).
  using bound = device.empty([], "float32");
  device.kernels.fill(bound, -maxNorm);
  device.kernels.scalar("add", factor, norm, 1e-6);
  device.kernels.binary("div", factor, bound, factor);
  device.kernels.scalar("max", factor, factor, -1);
  device.kernels.scalar("mul", factor, factor, -1);
  for (const gradient of gradients) device.kernels.binary("mul", gradient, gradient, factor);
  return norm;
}

/** Elements squared and summed by one thread at a time. */
const run = 8192;

/** The norm of all gradients together, a scalar float32: √ of the sum of all squares: runs of every gradient on all threads, then one sum. */
export function normOf(gradients: readonly Tensor[]): Tensor {
  const { device } = gradients[0]!;
  const counts = gradients.map(({ size }) => Math.ceil(size / run));
  const total = counts.reduce((sum, count) => sum + count, 0);
  using squares = device.empty([Math.max(1, total)], "float32");
  if (total === 0) device.kernels.fill(squares, 0);
  let at = 0;
  for (const each of gradients) {
    using gradient = each.contiguous();
    const whole = Math.floor(gradient.size / run);
    for (const [rows, length, offset] of [
      [whole, run, 0],
      [1, gradient.size - whole * run, whole * run],
    ] as const) {
      if (rows * length === 0) continue;
      using flat = gradient.view({ shape: [rows, length], strides: [length, 1], offset: gradient.offset + offset });
      using part = squares.view({ shape: [rows], strides: [1], offset: at });
      device.kernels.rowDot(part, flat, flat);
      at += rows;
    }
  }
  const norm = device.empty([], "float32");
  using sum = norm.view({ shape: [1], strides: [1] });
  if (squares.size === 1) device.kernels.copy(sum, squares);
  else device.kernels.reduce("sum", sum, squares);
  device.kernels.unary("sqrt", norm, norm);
  return norm;
}
