import { checkTensor } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import { formatDevice } from "../device.ts";
import { expectValue, OptionError, ShapeError } from "../errors.ts";
import { formatShape, normalizeAxis } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { contiguous, transpose } from "../views.ts";
import type { ProcessGroup } from "./process-group.ts";

// Differentiable collectives, as in torch.distributed.nn.functional. They return a new tensor and do not change their
// input, unlike the methods of ProcessGroup.
//
// Gradients are those of the sum of all ranks' losses. The backward of a collective is itself a collective, so every
// rank of the group must run it: on all ranks, or on none, the input requires grad and the result contributes to the
// loss.

/** Operator of a differentiable reduction. */
export type FunctionalReduceOp = "sum" | "mean";

interface Reduction {
  readonly group: ProcessGroup;
  readonly op: FunctionalReduceOp;
}

interface AlongAxis {
  readonly group: ProcessGroup;
  readonly axis: number;
}

const allReduceOp = defineOp({
  name: "allReduce",
  forward: ([x]: [Tensor], { group, op }: Reduction) => ({
    output: reduceOverRanks(x, { group, op }, "allReduce"),
    saved: { group, op },
  }),
  backward: ({ group, op }, dOut) => [reduceOverRanks(dOut, { group, op }, "allReduce backward")],
});

/**
 * Returns the sum or the mean of the tensors of all ranks, the same on every rank. Its gradient is reduced in the same
 * way. Collective, and so is its backward.
 *
 * @example
 * ```ts
 * import { fromArray, functionalCollectives, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using x = fromArray(ctx, [1, 2], [2]);
 * x.requiresGrad = true;
 * using total = functionalCollectives.allReduce(x, ctx.world);
 * using loss = total.mul(total).sum();
 * loss.backward();
 * Array.from(await x.grad!.read()); // => [2, 4]
 * ```
 * @throws OptionError for an operator other than "sum" and "mean".
 */
export function allReduce(x: Tensor, group: ProcessGroup, op: FunctionalReduceOp = "sum"): Tensor {
  checkArguments("allReduce", x, group);
  checkOp("allReduce", op);
  return allReduceOp([x], { group, op });
}

const allGatherOp = defineOp({
  name: "allGather",
  forward: ([x]: [Tensor], { group, axis }: AlongAxis) => ({
    output: gatherRows(x, { group, axis }, "allGather"),
    saved: { group, axis },
  }),
  backward: ({ group, axis }, dOut) => [scatterRows(dOut, { group, axis, op: "sum" }, "allGather backward")],
});

/**
 * Concatenates the tensors of all ranks along an axis in rank order, on every rank. All have the same shape. A rank's
 * gradient is the sum over all ranks of the gradients of its part, by a reduce-scatter. Collective, and so is its
 * backward.
 *
 * @example
 * ```ts
 * import { functionalCollectives, init, ones } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using x = ones(ctx, [2, 3]);
 * using gathered = functionalCollectives.allGather(x, ctx.world, 1);
 * gathered.shape[1] === 3 * ctx.size; // => true
 * ```
 * @throws ShapeError for an axis out of range.
 */
export function allGather(x: Tensor, group: ProcessGroup, axis: number): Tensor {
  checkArguments("allGather", x, group);
  return allGatherOp([x], { group, axis: normalizeAxis(axis, x.rank, "allGather") });
}

const reduceScatterOp = defineOp({
  name: "reduceScatter",
  forward: ([x]: [Tensor], { group, axis, op }: AlongAxis & Reduction) => ({
    output: scatterRows(x, { group, axis, op }, "reduceScatter"),
    saved: { group, axis, op },
  }),
  backward({ group, axis, op }, dOut) {
    const dx = gatherRows(dOut, { group, axis }, "reduceScatter backward");
    if (op === "mean") dx.device.kernels.scalar("div", dx, dx, group.size);
    return [dx];
  },
});

/**
 * Returns this rank's part of the sum or the mean of the tensors of all ranks. The result is split equally along an
 * axis in rank order. The gradient is gathered from all ranks. Collective, and so is its backward.
 *
 * @example
 * ```ts
 * import { functionalCollectives, init, ones } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using x = ones(ctx, [2, 4]);
 * using part = functionalCollectives.reduceScatter(x, ctx.world, 1, "mean");
 * part.shape[1] === 4 / ctx.size; // => true
 * ```
 * @throws ShapeError for an axis out of range, or whose length is not a multiple of the number of ranks; OptionError for
 * an operator other than "sum" and "mean".
 */
// oxlint-disable-next-line max-params -- as in PyTorch: tensor, group, axis, operator
export function reduceScatter(x: Tensor, group: ProcessGroup, axis: number, op: FunctionalReduceOp = "sum"): Tensor {
  checkArguments("reduceScatter", x, group);
  checkOp("reduceScatter", op);
  const normalizedAxis = normalizeAxis(axis, x.rank, "reduceScatter");
  if (x.shape[normalizedAxis]! % group.size !== 0) {
    throw new ShapeError({
      where: `reduceScatter, rank ${group.rank}`,
      expected: `a multiple of ${group.size}, the number of ranks, along axis ${normalizedAxis}`,
      received: formatShape(x.shape),
    });
  }
  return reduceScatterOp([x], { group, axis: normalizedAxis, op });
}

/** Reduces a copy of x over the ranks. */
function reduceOverRanks(x: Tensor, { group, op }: Reduction, label: string): Tensor {
  const out = x.device.empty(x.shape, x.dtype);
  if (x.size > 0) x.device.kernels.copy(out, x);
  group.allReduce(out, op, { label }).wait();
  return out;
}

/** Concatenates the tensors of all ranks along an axis. */
function gatherRows(x: Tensor, { group, axis }: AlongAxis, label: string): Tensor {
  using rowsFirst = transpose(x, 0, axis);
  using input = contiguous(rowsFirst);
  using gathered = x.device.empty(input.shape.with(0, group.size * input.shape[0]!), x.dtype);
  group.allGather(gathered, input, { label }).wait();
  using out = transpose(gathered, 0, axis);
  return contiguous(out);
}

/** Reduces the tensors of all ranks, and returns this rank's part along an axis. */
function scatterRows(x: Tensor, { group, axis, op }: AlongAxis & Reduction, label: string): Tensor {
  using rowsFirst = transpose(x, 0, axis);
  using input = contiguous(rowsFirst);
  using part = x.device.empty(input.shape.with(0, input.shape[0]! / group.size), x.dtype);
  group.reduceScatter(part, input, op, { label }).wait();
  using out = transpose(part, 0, axis);
  return contiguous(out);
}

function checkArguments(where: string, x: Tensor, group: ProcessGroup): void {
  checkTensor(where, x);
  const isGroup = typeof (group as Partial<ProcessGroup> | null | undefined)?.reduceScatter === "function";
  expectValue(`${where}: group`, isGroup, "a ProcessGroup, such as ctx.world", group);
  if (x.device === group.device) return;
  throw new OptionError({
    where,
    expected: `a tensor on the device of group ${group.name}, ${formatDevice(group.device)}`,
    received: `a tensor on ${formatDevice(x.device)}`,
  });
}

function checkOp(where: string, op: unknown): void {
  expectValue(`${where}: op`, op === "sum" || op === "mean", '"sum" or "mean"', op);
}
