import { type Context, fromArray, layoutOf, type Tensor } from "@mosaic/attention";
import type { Tokens } from "./model.ts";
import type { Sample } from "./sample.ts";
import type { ModelSettings } from "./settings.ts";
import { WORDS, wordsAt } from "./words.ts";

/** Inputs and targets of a step: this rank's rows. Disposing it disposes all. */
export interface Batch extends Disposable {
  readonly tokens: Tokens;
  /** [B,S]. */
  readonly targets: Tensor;
}

/** Puts this rank's rows of some samples, all equally long, on its device. */
export function loadBatch(
  ctx: Context,
  samples: readonly Sample[],
  { chunkLength }: Pick<ModelSettings, "chunkLength">,
): Batch {
  const { length } = samples[0]!.letters;
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length });
  const { start, length: rows } = layout.spans(ctx.mesh.coordinate)[0]!;
  const end = start + rows;
  const count = samples.length;
  const words = samples.flatMap(({ letters }) => Array.from(wordsAt(letters, start, end)));
  const targets = samples.flatMap((sample) => Array.from(sample.targets.subarray(start, end)));
  const places = Array.from({ length: rows }, (_, row) => (start + row) % chunkLength);
  const tensors = {
    words: fromArray(ctx, words, [count, rows, WORDS]),
    targets: fromArray(ctx, targets, [count, rows]),
    places: fromArray(ctx, places, [rows]),
  };
  return {
    tokens: tensors,
    targets: tensors.targets,
    [Symbol.dispose]: () => Object.values(tensors).forEach((tensor) => tensor.dispose()),
  };
}
