import type { Context } from "@mosaic/attention";
import type { MetaResult } from "@mosaic/attention/meta";
import { crossEntropyTerms } from "@mosaic/attention/nn";
import type { Evaluation } from "./curve.ts";
import { readLambdaGenome } from "./genome.ts";
import { IGNORE_INDEX, maskBases, type Sample } from "./masked-bases.ts";
import { GenomeModel } from "./model.ts";
import { Random } from "@mosaic/program";
import { loadBatch } from "./samples.ts";
import type { Settings } from "./settings.ts";
import type { Trainer } from "./trainer.ts";

/** Default number of sequences of an evaluation. */
const EVALUATION_SEQUENCES = 8;

/** Evaluates a model on held-out sequences. Collective. The result is the same on every rank. */
export async function evaluate(trainer: Trainer, sequences: number = EVALUATION_SEQUENCES): Promise<Evaluation> {
  const { ctx, model, settings, samples } = trainer;
  model.eval();
  const recallCounts: RecallCount[] = [];
  let [totalLoss, totalMasked] = [0, 0];
  for (let i = 0; i < sequences; i++) {
    const sample = samples.heldOutSample(i);
    using batch = loadBatch(ctx, [sample], settings);
    using output = await model.forward(batch.tokens);
    using lossTerms = crossEntropyTerms(output.logits, batch.targets, { ignoreIndex: IGNORE_INDEX });
    using summedTerms = lossTerms.detach();
    if (ctx.size > 1) ctx.world.allReduce(summedTerms, "sum", { label: "judgement" }).wait();
    const [lossSum, numMasked] = await summedTerms.read();
    [totalLoss, totalMasked] = [totalLoss + lossSum!, totalMasked + numMasked!];
    if (isPlanted(sample) && output.results.length > 0) {
      const chosenChunksByRow = getChosenChunks(output.results, output.results.length - 1);
      recallCounts.push(countRecalledPairs(chosenChunksByRow, sample.sources, settings.topK));
    }
  }
  model.train();
  const numPairs = recallCounts.reduce((total, recallCount) => total + recallCount.numPairs, 0);
  const recall = recallCounts.reduce((total, recallCount) => total + recallCount.numRecalled, 0) / numPairs;
  return { loss: totalLoss / totalMasked, ...(numPairs > 0 && { recall }) };
}

function isPlanted(sample: Sample): sample is Sample & { readonly sources: ReadonlyMap<number, number> } {
  return "sources" in sample;
}

/** Number of recalled pairs, and number of all pairs. */
interface RecallCount {
  readonly numRecalled: number;
  readonly numPairs: number;
}

/** Counts the query chunks whose source is among the first k chosen chunks. */
export function countRecalledPairs(
  chosenChunksByRow: readonly (readonly number[])[],
  sources: ReadonlyMap<number, number>,
  k: number,
): RecallCount {
  const recalledPairs = [...sources].filter(([query, source]) =>
    chosenChunksByRow[query]!.slice(0, k).includes(source),
  );
  return { numRecalled: recalledPairs.length, numPairs: sources.size };
}

/** Comparison of the first k chosen chunks with the k other chunks that have the most attention mass. */
export interface TopKRecall {
  /** Share of the k best chunks that was chosen. */
  readonly recall: number;
  /** Mass on the chosen chunks, divided by the mass on the k best. */
  readonly captured: number;
}

/** Computes the recall from mass [n,N] of n query chunks from index `first` on. A query's own chunk is excluded. */
export function topKRecall(
  mass: Float32Array,
  chosenChunksByRow: readonly (readonly number[])[],
  { k, chunks, first: firstRow = 0 }: { k: number; chunks: number; first?: number },
): TopKRecall {
  const rows = mass.length / chunks;
  let [numHits, capturedMass, maxMass] = [0, 0, 0];
  for (let row = 0; row < rows; row++) {
    const chunkMass = (chunk: number): number => mass[row * chunks + chunk]!;
    const otherChunks = Array.from({ length: chunks }, (_, chunk) => chunk).filter((chunk) => chunk !== firstRow + row);
    const topChunks = otherChunks.sort((a, b) => chunkMass(b) - chunkMass(a)).slice(0, k);
    const selectedChunks = chosenChunksByRow[firstRow + row]!.slice(0, k);
    numHits += topChunks.filter((chunk) => selectedChunks.includes(chunk)).length;
    capturedMass += selectedChunks.reduce((sum, chunk) => sum + chunkMass(chunk), 0);
    maxMass += topChunks.reduce((sum, chunk) => sum + chunkMass(chunk), 0);
  }
  return { recall: numHits / (rows * k), captured: capturedMass / maxMass };
}

/** Returns, for each chunk of one sequence, the chunks that a layer's router chose. */
function getChosenChunks(
  results: readonly MetaResult[],
  layer: number,
  sequenceIndex = 0,
): readonly (readonly number[])[] {
  return results[layer]!.meta.chosen[sequenceIndex]!;
}

/** Measures how well the last layer's router predicts the mass of exact attention, on held-out sequences. */
export async function measureRouterRecall(
  trainer: Trainer,
  sequences = 8,
): Promise<TopKRecall & { readonly chance: number }> {
  const { ctx, model, settings, samples } = trainer;
  const { chunks, topK: k } = settings;
  const allChunks = Array.from({ length: chunks }, (_, i) => i);
  const otherChunksByRow = allChunks.map((i) => allChunks.filter((j) => j !== i));
  const recalls: TopKRecall[] = [];
  model.eval();
  for (let i = 0; i < sequences; i++) {
    using batch = loadBatch(ctx, [samples.heldOutSample(i)], settings);
    using routedOutput = await model.forward(batch.tokens);
    // The same weights with all chunks chosen compute exact attention.
    using exactOutput = await model.forward(batch.tokens, { chosen: [otherChunksByRow] });
    const { attentionMass } = exactOutput.results.at(-1)!.meta;
    const chosenChunksByRow = getChosenChunks(routedOutput.results, routedOutput.results.length - 1);
    recalls.push(topKRecall(await attentionMass.read(), chosenChunksByRow, { k, chunks }));
  }
  model.train();
  const computeMean = (select: (recall: TopKRecall) => number): number =>
    recalls.reduce((sum, recall) => sum + select(recall), 0) / sequences;
  return {
    recall: computeMean((recall) => recall.recall),
    captured: computeMean((recall) => recall.captured),
    chance: k / (chunks - 1),
  };
}

/** Routing map: the weight with which each bin of the genome is routed to each bin. Rows sum to 1. */
export interface RoutingMap {
  /** Number of bases in a bin. */
  readonly bin: number;
  readonly bins: number;
  /** [bins,bins], row-major. */
  readonly weights: readonly number[];
}

/** Number of adjacent chunks in a bin of the routing map. */
const CHUNKS_PER_BIN = 4;

/**
 * Routes the whole genome at once, on one rank, with a trained model's weights. Returns the last layer's routing
 * distribution, by bins of a few chunks. The last bin wraps around the end, because λ is circular inside its host.
 */
export async function computeRoutingMap(
  ctx: Context,
  settings: Settings,
  trainedModel: GenomeModel,
): Promise<RoutingMap> {
  const genome = readLambdaGenome();
  const { chunkLength } = settings;
  const basesPerBin = CHUNKS_PER_BIN * chunkLength;
  const bins = Math.ceil(genome.length / basesPerBin);
  const chunks = bins * CHUNKS_PER_BIN;
  const wholeGenomeSettings: Settings = { ...settings, chunks };
  using model = new GenomeModel(ctx, wholeGenomeSettings);
  model.loadStateDict(trainedModel.stateDict());
  model.eval();
  const sample = maskBases(genome, { start: 0, length: chunks * chunkLength }, new Random(settings.seed, 2));
  using batch = loadBatch(ctx, [sample], wholeGenomeSettings);
  using output = await model.forward(batch.tokens);
  const routingWeights = await output.results.at(-1)!.meta.routingWeights.read();
  return { bin: basesPerBin, bins, weights: sumIntoBins(routingWeights, chunks) };
}

/** Sums weights over the chunks of a column's bin, and averages them over the chunks of a row's bin. */
function sumIntoBins(routingWeights: Float32Array, chunks: number): readonly number[] {
  const bins = chunks / CHUNKS_PER_BIN;
  const sums = new Float64Array(bins * bins);
  routingWeights.forEach((weight, cellIndex) => {
    const row = Math.floor(Math.floor(cellIndex / chunks) / CHUNKS_PER_BIN);
    const column = Math.floor((cellIndex % chunks) / CHUNKS_PER_BIN);
    sums[row * bins + column]! += weight / CHUNKS_PER_BIN;
  });
  return Array.from(sums, (sum) => Number(sum.toPrecision(3)));
}
