import type { Context, Tensor } from "@mosaic/attention";
import { scope, noGrad, shard, fromArray } from "@mosaic/attention";
import { linearCrossEntropyTerms, meanOverMesh } from "@mosaic/attention/nn";
import type { CausalLM } from "@mosaic/models";

/** Tokens of one text and, for each question, the labels of some tokens. Other labels are −100. */
export interface ScoredText {
  readonly tokens: readonly number[];
  readonly questionLabels: readonly (readonly number[])[];
}

/** Returns the mean cross-entropy of each question's labels, in nats, on ranks that share the text. Collective. */
export async function scoreText(ctx: Context, { decoder, settings }: CausalLM, text: ScoredText): Promise<number[]> {
  const { length } = text.tokens;
  const { placement } = settings;
  const createRow = (values: readonly number[]): Tensor => {
    using fullRow = fromArray(ctx, values, [1, length]);
    return shard(ctx, fullRow, 1, { placement });
  };
  const losses = scope(() =>
    noGrad(() => {
      const hidden = decoder.forward(createRow(text.tokens), { sequenceLength: length });
      const { weight } = decoder.embedding;
      return text.questionLabels.map((labels) => {
        const lossTerms = linearCrossEntropyTerms(hidden, { weight }, createRow(labels));
        return meanOverMesh(ctx, lossTerms);
      });
    }),
  );
  const values: number[] = [];
  for (const loss of losses) {
    values.push(await loss.item());
    loss.dispose();
  }
  return values;
}
