import type { Context } from "@mosaic/attention";
import { readLambda } from "./bases.ts";
import { loadBatch } from "./samples.ts";
import { maskBases } from "./hidden.ts";
import { GenomeModel } from "./model.ts";
import { Random } from "./random.ts";
import { chosenChunks, type MassRecall, massRecall } from "./recall.ts";
import type { Settings } from "./settings.ts";
import type { Trainer } from "./trainer.ts";

/** How well the last layer's router predicts where exact attention would look, on sequences it never trained on. */
export async function measureRouterRecall(
  trainer: Trainer,
  sequences = 8,
): Promise<MassRecall & { readonly chance: number }> {
  const { ctx, model, settings, samples } = trainer;
  const { chunks, topK: k } = settings;
  const everyone = Array.from({ length: chunks }, (_, i) => i);
  const others = everyone.map((i) => everyone.filter((j) => j !== i));
  const found: MassRecall[] = [];
  model.eval();
  for (let i = 0; i < sequences; i++) {
    using batch = loadBatch(ctx, [samples.heldOutSample(i)], settings);
    using routed = await model.forward(batch.tokens);
    // The same weights look everywhere: what they see is exact attention.
    using exact = await model.forward(batch.tokens, { chosen: [others] });
    const { attentionMass } = exact.results.at(-1)!.meta;
    const chosen = chosenChunks(routed.results, routed.results.length - 1);
    found.push(massRecall(await attentionMass.read(), chosen, { k, chunks }));
  }
  model.train();
  const mean = (of: (one: MassRecall) => number): number => found.reduce((sum, one) => sum + of(one), 0) / sequences;
  return { recall: mean((one) => one.recall), captured: mean((one) => one.captured), chance: k / (chunks - 1) };
}

/** A routing map: how much each bin of the genome is routed to each other, rows sum to 1. */
export interface RoutingMap {
  /** Bases of a bin. */
  readonly bin: number;
  readonly bins: number;
  /** [bins,bins], row by row. */
  readonly weights: readonly number[];
}

/** Neighbouring chunks are drawn as one. */
const CHUNKS_OF_BIN = 4;

/**
 * Routes the whole genome at once, on one rank, with a trained model's weights: the last layer's routing distribution, by
 * bins of a few chunks. The last bin reaches around the end, where λ closes to a circle inside its host.
 */
export async function mapRouting(ctx: Context, settings: Settings, trained: GenomeModel): Promise<RoutingMap> {
  const genome = readLambda();
  const { chunkLength } = settings;
  const bin = CHUNKS_OF_BIN * chunkLength;
  const bins = Math.ceil(genome.length / bin);
  const chunks = bins * CHUNKS_OF_BIN;
  const whole: Settings = { ...settings, chunks };
  using model = new GenomeModel(ctx, whole);
  model.loadStateDict(trained.stateDict());
  model.eval();
  const sample = maskBases(genome, { start: 0, length: chunks * chunkLength }, new Random(settings.seed, 2));
  using batch = loadBatch(ctx, [sample], whole);
  using output = await model.forward(batch.tokens);
  const routing = await output.results.at(-1)!.meta.routingWeights.read();
  return { bin, bins, weights: sumIntoBins(routing, chunks) };
}

/** Sums over the chunks of a column's bin, means over those of a row's. */
function sumIntoBins(routing: Float32Array, chunks: number): readonly number[] {
  const bins = chunks / CHUNKS_OF_BIN;
  const sums = new Float64Array(bins * bins);
  routing.forEach((weight, at) => {
    const row = Math.floor(Math.floor(at / chunks) / CHUNKS_OF_BIN);
    const column = Math.floor((at % chunks) / CHUNKS_OF_BIN);
    sums[row * bins + column]! += weight / CHUNKS_OF_BIN;
  });
  return Array.from(sums, (sum) => Number(sum.toPrecision(3)));
}
