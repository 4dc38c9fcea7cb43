import type { MetaResult } from "@mosaic/attention/meta";
import { crossEntropyTerms } from "@mosaic/attention/nn";
import type { Evaluation } from "./curve.ts";
import { IGNORED, type Sample } from "./hidden.ts";
import { loadBatch } from "./samples.ts";
import type { Trainer } from "./trainer.ts";

/** Sequences that are evaluated at once. */
const BATCH_SEQUENCES = 8;

/** How a model does on sequences that it never trains on. Collective; the same on every rank. */
export async function evaluate(trainer: Trainer, sequences: number = BATCH_SEQUENCES): Promise<Evaluation> {
  const { ctx, model, settings, samples } = trainer;
  model.eval();
  const shares: HitRate[] = [];
  let [sum, count] = [0, 0];
  for (let i = 0; i < sequences; i++) {
    const sample = samples.heldOutSample(i);
    using batch = loadBatch(ctx, [sample], settings);
    using output = await model.forward(batch.tokens);
    using terms = crossEntropyTerms(output.logits, batch.targets, { ignoreIndex: IGNORED });
    using own = terms.detach();
    if (ctx.size > 1) ctx.world.allReduce(own, "sum", { label: "judgement" }).wait();
    const [lost, hidden] = await own.read();
    [sum, count] = [sum + lost!, count + hidden!];
    if (isPlanted(sample) && output.results.length > 0) {
      const chosen = chosenChunks(output.results, output.results.length - 1);
      shares.push(plantedRecall(chosen, sample.sources, settings.topK));
    }
  }
  model.train();
  const of = shares.reduce((total, share) => total + share.of, 0);
  const recall = shares.reduce((total, share) => total + share.hits, 0) / of;
  return { loss: sum / count, ...(of > 0 && { recall }) };
}

function isPlanted(sample: Sample): sample is Sample & { readonly sources: ReadonlyMap<number, number> } {
  return "sources" in sample;
}

/** A share: so many of so many. */
interface HitRate {
  readonly hits: number;
  readonly of: number;
}

/** Of how many query chunks the one source is among the first k that were chosen. */
export function plantedRecall(
  chosen: readonly (readonly number[])[],
  sources: ReadonlyMap<number, number>,
  k: number,
): HitRate {
  const found = [...sources].filter(([query, source]) => chosen[query]!.slice(0, k).includes(source));
  return { hits: found.length, of: sources.size };
}

/** What share of the remote mass, and of the k chunks with most of it, the first k chosen chunks have. */
export interface MassRecall {
  /** Of the k other chunks with most of the attention, the share that was chosen. */
  readonly recall: number;
  /** Mass on the chosen chunks, over the mass on the k best. */
  readonly captured: number;
}

/** Row by row of mass [n,N], n query chunks beginning with number `first`; their own chunk does not count. */
export function massRecall(
  mass: Float32Array,
  chosen: readonly (readonly number[])[],
  { k, chunks, first = 0 }: { k: number; chunks: number; first?: number },
): MassRecall {
  const rows = mass.length / chunks;
  let [hits, got, best] = [0, 0, 0];
  for (let row = 0; row < rows; row++) {
    const of = (chunk: number): number => mass[row * chunks + chunk]!;
    const others = Array.from({ length: chunks }, (_, chunk) => chunk).filter((chunk) => chunk !== first + row);
    const top = others.sort((a, b) => of(b) - of(a)).slice(0, k);
    const taken = chosen[first + row]!.slice(0, k);
    hits += top.filter((chunk) => taken.includes(chunk)).length;
    got += taken.reduce((sum, chunk) => sum + of(chunk), 0);
    best += top.reduce((sum, chunk) => sum + of(chunk), 0);
  }
  return { recall: hits / (rows * k), captured: got / best };
}

/** The chunks of one sequence that each chunk chose, with the first layer's router or another's. */
export function chosenChunks(
  results: readonly MetaResult[],
  layer: number,
  sequence = 0,
): readonly (readonly number[])[] {
  return results[layer]!.meta.chosen[sequence]!;
}
