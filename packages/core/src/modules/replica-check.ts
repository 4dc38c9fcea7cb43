import type { Transfer } from "../collectives/process-group.ts";
import type { Context } from "../context.ts";
import { MosaicError } from "../errors.ts";
import { addPendingCheck, throwFailedCheck } from "../pending-checks.ts";
import type { DType } from "../storage.ts";
import type { Tensor } from "../tensor.ts";
import { releaseOnError } from "../tracking.ts";
import { BUCKET_ELEMENTS, planBuckets } from "./gradient-buckets.ts";

// Parameters are replicated: reduced gradients keep them equal only if they were equal before the first step. The first
// reduction of a parameter's gradient compares the parameter of each rank with that of the previous rank, and rejects
// differences. PyTorch's DistributedDataParallel overwrites them (docs/decisions/0080-replicas-are-compared.md).

const where = "reduceGradients";

/** Elements of a bucket. Two exist at a time, this rank's and the previous rank's, with 25 MiB of float32. */
const COMPARED_ELEMENTS = BUCKET_ELEMENTS / 2;

/** Number of differences that one thread squares and sums at a time. */
const BLOCK_SIZE = 8192;

/** Maximum number of parameters and of ranks that an error lists. */
const MAX_LISTED = 5;

/**
 * Parameters differ between ranks before training. Thrown after the first `reduceGradients`, asynchronously, by every
 * rank.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { type Context, fromArray, Module, reduceGradients } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * class Scale extends Module {
 *   readonly scale;
 *   constructor(ctx: Context) {
 *     super();
 *     this.scale = this.addParameter("scale", fromArray(ctx, [1 + ctx.rank], [1]));
 *   }
 * }
 * const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
 * const models = contexts.map((ctx) => new Scale(ctx));
 * for (const [rank, ctx] of contexts.entries()) reduceGradients(ctx, models[rank]!);
 * await Promise.all(
 *   models.map(({ scale }) => scale.read()),
 * ); // throws reduceGradients: expected parameters that are equal on all ranks, received "scale", which differs between ranks 0 and 1
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 */
export class ParameterMismatchError extends MosaicError {
  /** Names of the parameters that differ, in the model's order. */
  readonly parameters: readonly string[];
  /** The ranks r on which at least one parameter differs from that of rank r − 1, ascending. */
  readonly ranks: readonly number[];

  constructor(ranksByParameter: ReadonlyMap<string, readonly number[]>) {
    const descriptions = [...ranksByParameter].map(
      ([name, ranks]) => `"${name}", which differs between ${formatPairs(ranks)}`,
    );
    super({
      where,
      expected: "parameters that are equal on all ranks",
      received: joinFirst(descriptions, "; ", "parameters"),
      remedy:
        "load checkpoints on all ranks, and create parameters with createParameter or from values that are equal on " +
        "all ranks, such as randn with { seed, stream }; register tensors that may differ with addBuffer",
    });
    this.parameters = [...ranksByParameter.keys()];
    this.ranks = [...new Set([...ranksByParameter.values()].flat())].toSorted((a, b) => a - b);
  }
}

/** Formats the pairs of ranks (r − 1, r). */
const formatPairs = (ranks: readonly number[]): string =>
  joinFirst(
    ranks.map((rank) => `ranks ${rank - 1} and ${rank}`),
    ", ",
    "pairs",
  );

/** Joins the first texts, and states how many more there are. */
function joinFirst(texts: readonly string[], separator: string, noun: string): string {
  const numOmitted = texts.length - MAX_LISTED;
  const omittedTexts = numOmitted > 0 ? [`and ${numOmitted} more ${noun}`] : [];
  return [...texts.slice(0, MAX_LISTED), ...omittedTexts].join(separator);
}

type NamedParameter = readonly [name: string, parameter: Tensor];

/** A comparison that was posted. It has an error if it has completed and parameters differ. */
interface Comparison {
  error?: ParameterMismatchError;
}

/** The comparison of each parameter. */
const comparisons = new WeakMap<Tensor, Comparison>();

/**
 * Posts the comparison of all whole parameters that were not compared before, without waiting for it. Every rank sends
 * its parameters to the next one, in buckets, so that the time does not depend on the number of ranks. One number per
 * parameter is all-gathered. Differences are reported by the next read of the device. Collective.
 *
 * @throws ParameterMismatchError if an earlier comparison has completed and parameters differ.
 */
export function compareReplicas(ctx: Context, namedParameters: readonly NamedParameter[]): void {
  if (ctx.size === 1) return;
  throwFailedCheck(ctx.device); // `close` would report the error again
  for (const [, parameter] of namedParameters) {
    const error = comparisons.get(parameter)?.error;
    if (error) throw error;
  }
  const newParameters = namedParameters.filter(
    ([, parameter]) => !comparisons.has(parameter) && parameter.size > 0 && isWhole(parameter),
  );
  if (newParameters.length === 0) return;
  const buckets = planParameterBuckets(newParameters.map(([, parameter]) => parameter));
  const values = releaseOnError(() => gatherDifferences(ctx, newParameters, buckets));
  const comparison: Comparison = {};
  for (const [, parameter] of newParameters) comparisons.set(parameter, comparison);
  const names = newParameters.map(([name]) => name);
  const parameterOfPart = buckets.flatMap(({ parts }) => parts.map(({ parameter }) => parameter));
  const check = values.then((differences) => {
    const ranksByParameter = findDifferences(differences, { names, parameterOfPart, size: ctx.size });
    if (ranksByParameter.size > 0) comparison.error = new ParameterMismatchError(ranksByParameter);
    return comparison.error;
  });
  addPendingCheck(ctx.device, check);
}

/** Whether this rank holds all values of a parameter. They are in transfer at times if only its shards are stored. */
function isWhole(parameter: Tensor): boolean {
  return !parameter.isDisposed && parameter.replication?.reducer?.storesOnlyShards !== true;
}

/** Elements from `start` to `end` of a flattened parameter, which begin at `offset` in a bucket. */
interface ParameterPart {
  /** Index of the parameter. */
  readonly parameter: number;
  readonly start: number;
  readonly end: number;
  readonly offset: number;
}

interface ParameterBucket {
  readonly dtype: DType;
  readonly size: number;
  readonly parts: readonly ParameterPart[];
}

/** Divides the concatenation of the parameters of each dtype into buckets. */
function planParameterBuckets(parameters: readonly Tensor[]): readonly ParameterBucket[] {
  const dtypes = [...new Set(parameters.map(({ dtype }) => dtype))];
  return dtypes.flatMap((dtype) => {
    const indices = [...parameters.keys()].filter((i) => parameters[i]!.dtype === dtype);
    const sizes = indices.map((i) => parameters[i]!.size);
    return planBuckets(sizes, COMPARED_ELEMENTS).map(({ size, parts }) => ({
      dtype,
      size,
      parts: parts.map(({ index, ...part }) => ({ parameter: indices[index]!, ...part })),
    }));
  });
}

/** Posts the comparison of each part, and requests the results of all ranks [size, numParts]: 0 if a part is equal. */
function gatherDifferences(
  ctx: Context,
  namedParameters: readonly NamedParameter[],
  buckets: readonly ParameterBucket[],
): Promise<Float32Array> {
  const { device, world } = ctx;
  const numParts = buckets.reduce((sum, { parts }) => sum + parts.length, 0);
  using differences = device.empty([numParts], "float32");
  device.kernels.fill(differences, 0);
  let partIndex = 0;
  for (const bucket of buckets) {
    using own = device.empty([bucket.size], bucket.dtype);
    using previous = device.empty([bucket.size], bucket.dtype);
    for (const { parameter, start, end, offset } of bucket.parts) {
      using detached = namedParameters[parameter]![1].detach();
      using contiguous = detached.contiguous();
      using source = contiguous.view({ shape: [end - start], strides: [1], offset: contiguous.offset + start });
      using part = own.view({ shape: source.shape, offset });
      device.kernels.copy(part, source);
    }
    const transfers: Transfer[] = [];
    if (ctx.rank + 1 < ctx.size) transfers.push({ tensor: own, to: ctx.rank + 1 });
    if (ctx.rank > 0) transfers.push({ tensor: previous, from: ctx.rank - 1 });
    world.sendRecv(transfers, { label: where }).wait();
    if (ctx.rank === 0) continue;
    device.kernels.binary("sub", previous, previous, own);
    // The smallest difference is 2⁻¹⁴⁹. Its square must not be 0.
    device.kernels.scalar("mul", previous, previous, 2 ** 127);
    for (const { start, end, offset } of bucket.parts) {
      using part = previous.view({ shape: [end - start], offset });
      using difference = differences.view({ shape: [1], offset: partIndex++ });
      writeSumOfSquares(difference, part);
    }
  }
  using allDifferences = device.empty([ctx.size, numParts], "float32");
  world.allGather(allDifferences, differences, { label: where }).wait();
  return device.read(allDifferences);
}

/** out [1] ← Σ x². Blocks of x are summed in parallel on all threads. */
function writeSumOfSquares(out: Tensor, x: Tensor): void {
  const { device } = x;
  const numFullBlocks = Math.floor(x.size / BLOCK_SIZE);
  const remainder = x.size % BLOCK_SIZE;
  using sums = device.empty([numFullBlocks + (remainder > 0 ? 1 : 0)], "float32");
  for (const [rows, length, block] of [
    [numFullBlocks, BLOCK_SIZE, 0],
    [1, remainder, numFullBlocks],
  ] as const) {
    if (rows * length === 0) continue;
    using blockRows = x.view({ shape: [rows, length], strides: [length, 1], offset: x.offset + block * BLOCK_SIZE });
    using blockSums = sums.view({ shape: [rows], offset: block });
    device.kernels.rowDot(blockSums, blockRows, blockRows);
  }
  if (sums.size === 1) device.kernels.copy(out, sums);
  else device.kernels.reduce("sum", out, sums);
}

interface GatheredParts {
  readonly names: readonly string[];
  /** Index of the parameter of each part. */
  readonly parameterOfPart: readonly number[];
  /** Number of ranks. */
  readonly size: number;
}

/**
 * Returns the ranks on which each parameter differs from that of the previous rank, for parameters that do. A part that
 * has a NaN, or an infinite element that is equal on both ranks, counts as equal, because its sum of squares is NaN.
 */
function findDifferences(
  differences: Float32Array,
  { names, parameterOfPart, size }: GatheredParts,
): ReadonlyMap<string, readonly number[]> {
  const numParts = parameterOfPart.length;
  const ranksByParameter = names.map((): number[] => []);
  for (let rank = 1; rank < size; rank++) {
    const ownDifferences = differences.subarray(rank * numParts, (rank + 1) * numParts);
    const indices = new Set(parameterOfPart.filter((_, part) => ownDifferences[part]! > 0));
    for (const parameter of indices) ranksByParameter[parameter]!.push(rank);
  }
  return new Map(
    ranksByParameter.flatMap((ranks, parameter) => (ranks.length > 0 ? [[names[parameter]!, ranks] as const] : [])),
  );
}
