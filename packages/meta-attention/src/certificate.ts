import { fromArray, LOWEST_FLOAT32, type Tensor } from "@mosaic/core";
import type { RoutedAttention } from "./attend/routed-attention.ts";
import { chunkRows, reduceInto, ResourceStack, zerosLike } from "./tensor-views.ts";
import type { Chunk } from "./chunks.ts";
import { clampMax } from "./log-softmax.ts";
import type { ChosenChunks, ChunkVisibility } from "./route/choose.ts";

/** Bound on the softmax mass that was not attended to. */
export interface Certificate {
  /** For each query row and head, an upper bound on the share of full attention's softmax that was not attended to: [B,S,H]. */
  readonly missedMass: Tensor;
}

/** Computes the bound for every row, from the statistics of keys that were not attended to. */
export function computeCertificate(
  attention: RoutedAttention,
  chosen: ChosenChunks,
  statistics: GatheredStatistics,
): Certificate {
  const { config, q } = attention;
  const [batch, numHeads, rows] = q.shape as [number, number, number];
  const missedMass = q.device.empty([batch, rows, numHeads], "float32");
  for (const [query, chunk] of config.chunks.own.entries()) {
    using logMasses = missedLogMass(attention, chosen, { statistics, query });
    using chunkRowsOfResult = missedMass.slice(1, chunk.offset, chunk.offset + chunk.length);
    using transposedRows = chunkRowsOfResult.permute([0, 2, 1]);
    using resultColumn = transposedRows.view({
      shape: [...transposedRows.shape, 1],
      strides: [...transposedRows.strides, 1],
    });
    using minMass = massLowerBound(attention, chosen, chunk);
    writeMassBound(resultColumn, logMasses, minMass);
  }
  return { missedMass };
}

/**
 * Returns a lower limit of the reported mass [B,1,1,1]: 2⁻¹²⁶ if visible chunks were left out, whose mass float32 may
 * round to 0, otherwise 0.
 */
function massLowerBound({ config, q }: RoutedAttention, chosen: ChosenChunks, { index }: Chunk): Tensor {
  const numVisibleChunks = config.chunks.visibility.count(index);
  const minMasses = chosen.map((chunksByQuery) => (chunksByQuery[index]!.length < numVisibleChunks ? 2 ** -126 : 0));
  return fromArray(q.device, minMasses, [chosen.length, 1, 1, 1]);
}

/** Logarithm of a mass ratio for which the sigmoid is certainly 1 in float32. */
const MAX_LOG_MASS_RATIO = 128;

/** out ← sigmoid(ln Σ e^logMass) over the last axis, slightly increased, at least `minMass` and at most 1. */
function writeMassBound(out: Tensor, logMasses: Tensor, minMass: Tensor): void {
  const { kernels } = logMasses.device;
  clampMax(logMasses, -MAX_LOG_MASS_RATIO);
  using maxLogMass = logMasses.device.empty(logMasses.shape.with(-1, 1), "float32");
  using sum = logMasses.device.empty(maxLogMass.shape, "float32");
  reduceInto("max", maxLogMass, logMasses);
  kernels.scalar("max", maxLogMass, maxLogMass, LOWEST_FLOAT32);
  kernels.binary("sub", logMasses, logMasses, maxLogMass);
  kernels.unary("exp", logMasses, logMasses);
  reduceInto("sum", sum, logMasses);
  kernels.unary("log", sum, sum);
  kernels.binary("add", sum, sum, maxLogMass);
  kernels.unary("sigmoid", sum, sum);
  kernels.binary("max", sum, sum, minMass);
  kernels.scalar("mul", sum, sum, 1 + 2 ** -20);
  clampMax(sum, -1);
  kernels.copy(out, sum);
}

/**
 * Returns [B,chunksPerRank,N]: for each of this rank's chunks, the largest `missedLogMass` over its rows and heads;
 * −Infinity for slots without a chunk.
 */
function maxMissedLogMass(attention: RoutedAttention, chosen: ChosenChunks, statistics: GatheredStatistics): Tensor {
  const { config, q } = attention;
  const batch = q.shape[0]!;
  const numChunks = config.chunks.all.length;
  const maxLogMasses = q.device.empty([batch, config.chunks.chunksPerRank, numChunks], "float32");
  if (config.chunks.own.length < config.chunks.chunksPerRank) q.device.kernels.fill(maxLogMasses, -Infinity);
  for (const query of config.chunks.own.keys()) {
    using logMasses = missedLogMass(attention, chosen, { statistics, query });
    using maxLogMassesRow = maxLogMasses.slice(1, query, query + 1);
    using maxLogMassesView = maxLogMassesRow.view({
      shape: [batch, 1, 1, numChunks],
      strides: [maxLogMassesRow.strides[0]!, 1, 1, 1],
    });
    reduceInto("max", maxLogMassesView, logMasses);
  }
  return maxLogMasses;
}

/** Statistics of the keys of all chunks: the gathered [N,B,M+W], in which the statistics start at index `start`. */
export interface GatheredStatistics {
  readonly gatheredFeatures: Tensor;
  readonly start: number;
}

// B batch, H heads in Hkv groups of G, each with a KV head; L rows of a query chunk, D head size, N chunks.

/**
 * For each row of a query chunk, each head and each chunk j that was visible but not attended to, computes an upper
 * bound on the logarithm of (softmax mass on j) / (mass attended to), u_j − l in docs/algorithms.md. Returns [B,H,L,N];
 * −Infinity for all other chunks, and Infinity if none of the attended keys was visible to a row.
 */
function missedLogMass(
  attention: RoutedAttention,
  chosen: ChosenChunks,
  { statistics, query }: { statistics: GatheredStatistics; query: number },
): Tensor {
  const { config, q, combinedState } = attention;
  const { kernels } = q.device;
  const chunk = config.chunks.own[query]!;
  using resources = new ResourceStack();
  const trackResource = <T extends Disposable>(resource: T): T => resources.use(resource);
  const numChunks = config.chunks.all.length;
  const [batch, headDim] = [q.shape[0]!, config.headDim];
  const rowShape = [batch, config.numKvHeads, config.numHeads / config.numKvHeads, chunk.length];
  const rows = trackResource(trackResource(chunkRows(q, chunk)).reshape([...rowShape, headDim]));
  const lse = trackResource(trackResource(chunkRows(combinedState.lse, chunk)).reshape([...rowShape, 1]));
  const { centers, radii } = keyBounds(statistics, config, resources);
  const createEmpty = (...shape: number[]): Tensor => trackResource(q.device.empty(shape, "float32"));

  // τ·(q·μ + ‖q‖·padded), padded = r + slack·(‖μ‖ + r)
  const bound = createEmpty(...rowShape, numChunks);
  kernels.matmul(bound, rows, centers, false);
  // On overflow, a larger value is still a bound, whereas −∞ + ∞ would be NaN.
  kernels.scalar("max", bound, bound, LOWEST_FLOAT32);
  const norms = createEmpty(...rowShape);
  kernels.rowDot(norms, rows, rows);
  sqrtUpperBound(norms, headDim);
  const radius = paddedRadii({ centers, radii }, (headDim + 16) * 2 ** -22, resources);
  const maxScoreDeviations = createEmpty(...rowShape, numChunks);
  kernels.binary("mul", maxScoreDeviations, trackResource(norms.reshape([...rowShape, 1])), radius);
  kernels.binary("add", bound, bound, maxScoreDeviations);
  kernels.scalar("mul", bound, bound, config.scale);

  // + ln n_j − l + 2⁻²⁰·(1 + |l|), where j was left out
  kernels.binary("add", bound, bound, trackResource(chunkLogLengths(attention)));
  kernels.binary("sub", bound, bound, lse);
  kernels.binary("add", bound, bound, trackResource(roundingMargin(lse)));
  clampMax(bound, trackResource(negatedBoundLimits(attention, chosen, chunk)));
  return bound.reshape([batch, config.numHeads, chunk.length, numChunks]);
}

/** Returns centers [B,Hkv,1,D,N] and radii [B,Hkv,1,1,N] as views of the gathered statistics. */
function keyBounds(
  { gatheredFeatures, start }: GatheredStatistics,
  { numKvHeads, headDim: size }: RoutedAttention["config"],
  resources: ResourceStack,
): { centers: Tensor; radii: Tensor } {
  const [count, batch] = gatheredFeatures.shape as [number, number];
  const [chunkStride, batchStride] = gatheredFeatures.strides as [number, number];
  const offset = gatheredFeatures.offset + start;
  const centers = {
    shape: [batch, numKvHeads, 1, size, count],
    strides: [batchStride, size, 0, 1, chunkStride],
    offset,
  };
  const radii = {
    shape: [batch, numKvHeads, 1, 1, count],
    strides: [batchStride, 1, 0, 0, chunkStride],
    offset: offset + numKvHeads * size,
  };
  return { centers: resources.use(gatheredFeatures.view(centers)), radii: resources.use(gatheredFeatures.view(radii)) };
}

/** Computes r + slack·(‖μ‖ + r), [B,Hkv,1,1,N]. */
function paddedRadii(
  { centers, radii }: { centers: Tensor; radii: Tensor },
  relativeSlack: number,
  resources: ResourceStack,
): Tensor {
  const { device, shape } = centers;
  const paddedRadius = resources.use(device.empty(radii.shape, "float32"));
  const squares = resources.use(device.empty(shape, "float32"));
  device.kernels.binary("mul", squares, centers, centers);
  reduceInto("sum", paddedRadius, squares);
  sqrtUpperBound(paddedRadius, shape[3]!);
  device.kernels.binary("add", paddedRadius, paddedRadius, radii);
  device.kernels.scalar("mul", paddedRadius, paddedRadius, relativeSlack);
  device.kernels.binary("add", paddedRadius, paddedRadius, radii);
  return paddedRadius;
}

/** Returns ln n_j, slightly increased, [1,1,1,1,N]. */
function chunkLogLengths({ config, q }: RoutedAttention): Tensor {
  const values = config.chunks.all.map(({ length }) => Math.log(length) + 2 ** -20);
  return fromArray(q.device, values, [1, 1, 1, 1, values.length]);
}

/**
 * Returns the negated upper limit of the bound [B,1,1,1,N]: −Infinity, no limit, if chunk j was visible but not
 * attended to, otherwise Infinity.
 */
function negatedBoundLimits({ config, q }: RoutedAttention, chosen: ChosenChunks, query: Chunk): Tensor {
  const { all: allChunks, visibility } = config.chunks;
  const values = chosen.flatMap((chunksByQuery) =>
    allChunks.map(({ index }) => {
      const isUnrouted = visibility.canAttend(query.index, index) && !chunksByQuery[query.index]!.includes(index);
      return isUnrouted ? -Infinity : Infinity;
    }),
  );
  return fromArray(q.device, values, [chosen.length, 1, 1, 1, allChunks.length]);
}

/** Returns 2⁻²⁰·(1 + |lse|). */
function roundingMargin(lse: Tensor): Tensor {
  const { kernels } = lse.device;
  const result = zerosLike(lse);
  kernels.scalar("mul", result, lse, -1);
  kernels.binary("max", result, result, lse);
  kernels.scalar("add", result, result, 1);
  kernels.scalar("mul", result, result, 2 ** -20);
  return result;
}

/** Returns the number of statistics that bound a chunk's keys: for each KV head, a center [D] and a radius. */
export function keyStatisticsWidth({ numKvHeads, headDim }: { numKvHeads: number; headDim: number }): number {
  return numKvHeads * (headDim + 1);
}

/**
 * Computes the center and the radius of the keys k [B,Hkv,S,D] of each chunk: float32 [c,B,Hkv·D + Hkv], the centers of
 * all heads before the radii.
 */
export function keyStatistics(k: Tensor, chunks: readonly Chunk[]): Tensor {
  const [batch, numHeads, , size] = k.shape as [number, number, number, number];
  const { device } = k;
  const result = device.empty([chunks.length, batch, numHeads * (size + 1)], "float32");
  for (const [i, chunk] of chunks.entries()) {
    using keys = chunkRows(k, chunk);
    using chunkStatistics = result.slice(0, i, i + 1);
    const batchStride = chunkStatistics.strides[1]!;
    using center = chunkStatistics.view({ shape: [batch, numHeads, 1, size], strides: [batchStride, size, size, 1] });
    using radius = chunkStatistics.view({
      shape: [batch, numHeads, 1],
      strides: [batchStride, 1, 1],
      offset: chunkStatistics.offset + numHeads * size,
    });
    writeStatistics(keys, center, radius);
  }
  return result;
}

function writeStatistics(keys: Tensor, center: Tensor, radius: Tensor): void {
  const { device, shape } = keys;
  const { kernels } = device;
  reduceInto("sum", center, keys);
  kernels.scalar("mul", center, center, 1 / shape[2]!);
  using centeredKeys = device.empty(shape, "float32");
  using squares = device.empty(shape.slice(0, 3), "float32");
  kernels.binary("sub", centeredKeys, keys, center);
  kernels.rowDot(squares, centeredKeys, centeredKeys);
  reduceInto("max", radius, squares);
  sqrtUpperBound(radius, shape[3]!);
}

/**
 * x ← an upper bound of √x, for sums x of `count` squares. The margin accounts for squares below 2⁻¹²⁶, which are
 * rounded to 0.
 */
function sqrtUpperBound(x: Tensor, count: number): void {
  x.device.kernels.unary("sqrt", x, x);
  x.device.kernels.scalar("add", x, x, Math.sqrt(count) * 2 ** -63);
}

/**
 * Attends to as many additional chunks as needed so that no row misses more than `epsilon` of its softmax. Returns all
 * chunks that were attended to. Needs one small all-gather, for which the host waits, because every rank must have the
 * additional chunks of all ranks.
 */
export async function extendChosenChunks(
  attention: RoutedAttention,
  initialChunks: ChosenChunks,
  { statistics, epsilon }: { statistics: GatheredStatistics; epsilon: number },
): Promise<ChosenChunks> {
  const { chunks, group, label } = attention.config;
  using maxima = maxMissedLogMass(attention, initialChunks, statistics);
  const [batch, , count] = maxima.shape as [number, number, number];
  using gatheredMaxima = maxima.device.empty([chunks.ranks, ...maxima.shape], "float32");
  if (group.size === 1) maxima.device.kernels.copy(gatheredMaxima, maxima);
  else group.allGather(gatheredMaxima, maxima, { label }).wait();
  const maximaBySlot = await gatheredMaxima.read();
  const rows = (b: number, i: number): Float32Array => {
    const { owner, slot } = chunks.all[i]!;
    const rowOffset = ((owner * batch + b) * chunks.chunksPerRank + (slot % chunks.chunksPerRank)) * count;
    return maximaBySlot.subarray(rowOffset, rowOffset + count);
  };
  const additionalChunks = selectAdditionalChunks(rows, initialChunks, { epsilon, visibility: chunks.visibility });
  if (additionalChunks.every((chunksByQuery) => chunksByQuery.every(({ length }) => length === 0)))
    return initialChunks;
  attention.attendChosenChunks(additionalChunks);
  return initialChunks.map((chunksByQuery, b) =>
    chunksByQuery.map((chosen, i) => [...chosen, ...additionalChunks[b]![i]!]),
  );
}

/**
 * Selects, for each query chunk, the chunks with the largest bounds, until the sum over the rest is at most ε/(1 − ε).
 * `getMissedLogMass(b, i)` returns, for each chunk, the largest `missedLogMass` over the rows of query chunk i.
 */
export function selectAdditionalChunks(
  getMissedLogMass: (b: number, i: number) => ArrayLike<number>,
  chosen: ChosenChunks,
  { epsilon, visibility }: { epsilon: number; visibility: ChunkVisibility },
): ChosenChunks {
  // Slightly less, to allow for rounding of the reported bound.
  const maxMissedMassRatio = (epsilon / (1 - epsilon)) * (1 - 2 ** -18);
  return chosen.map((chunksByQuery, b) =>
    chunksByQuery.map((selectedChunks, i) => {
      const row = getMissedLogMass(b, i);
      const missedMass = (j: number): number => Math.exp(row[j]!);
      const candidates = Array.from({ length: visibility.chunks }, (_, j) => j)
        .filter((j) => visibility.canAttend(i, j) && !selectedChunks.includes(j))
        .sort((x, y) => missedMass(x) - missedMass(y) || y - x);
      let numOmittedChunks = 0;
      for (let sum = 0; numOmittedChunks < candidates.length; numOmittedChunks++)
        if (!((sum += missedMass(candidates[numOmittedChunks]!)) <= maxMissedMassRatio)) break;
      return candidates.slice(numOmittedChunks).reverse();
    }),
  );
}
