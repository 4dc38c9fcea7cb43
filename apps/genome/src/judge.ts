import { crossEntropyTerms } from "@mosaic/attention/nn";
import { loadBatch } from "./batch.ts";
import type { Judgement } from "./curve.ts";
import { chosenOf, plantedRecall, type Share } from "./recall.ts";
import { IGNORED, type Sample } from "./sample.ts";
import type { Trainer } from "./trainer.ts";

/** Sequences that are judged in one go. */
const SEQUENCES = 8;

/** How a model does on sequences that it never trains on. Collective; the same on every rank. */
export async function judge(trainer: Trainer, sequences: number = SEQUENCES): Promise<Judgement> {
  const { ctx, model, settings, samples } = trainer;
  model.eval();
  const shares: Share[] = [];
  let [sum, count] = [0, 0];
  for (let i = 0; i < sequences; i++) {
    const sample = samples.held(i);
    using batch = loadBatch(ctx, [sample], settings);
    using output = await model.forward(batch.tokens);
    using terms = crossEntropyTerms(output.logits, batch.targets, { ignoreIndex: IGNORED });
    using own = terms.detach();
    if (ctx.size > 1) ctx.world.allReduce(own, "sum", { label: "judgement" }).wait();
    const [lost, hidden] = await own.read();
    [sum, count] = [sum + lost!, count + hidden!];
    if (isPlanted(sample) && output.results.length > 0) {
      const chosen = chosenOf(output.results, output.results.length - 1);
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
