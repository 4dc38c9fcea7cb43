import { type Context, fromArray, layoutOf, type Tensor } from "@mosaic/attention";
import { type Bases, readLambdaGenome, tokenize, WORDS_PER_TOKEN } from "./genome.ts";
import {
  HELD_OUT_RANGE,
  maskBases,
  type PlantedSample,
  plantRepeats,
  type Sample,
  drawTrainingStart,
} from "./masked-bases.ts";
import type { Tokens } from "./model.ts";
import { Random } from "@mosaic/program";
import type { ModelSettings, Settings } from "./settings.ts";

/** Random stream of each split. The streams are disjoint. */
const randomStreams = { training: 0, evaluation: 1 } as const;
type Split = keyof typeof randomStreams;

/** Sequences of a task. They are the same on every rank, in every run and after every restart. */
export class SampleSource {
  readonly #settings: Settings;
  readonly #genome: Bases = readLambdaGenome();

  constructor(settings: Settings) {
    this.#settings = settings;
  }

  /** Returns the sequences of one step. */
  trainingSamples(step: number): readonly Sample[] {
    const { batch } = this.#settings;
    return Array.from({ length: batch }, (_, i) => this.#drawSample("training", step * batch + i));
  }

  /** Returns the i-th held-out sequence. */
  heldOutSample(i: number): Sample | PlantedSample {
    return this.#drawSample("evaluation", i);
  }

  #drawSample(split: Split, i: number): Sample | PlantedSample {
    const { task, chunks, chunkLength, seed } = this.#settings;
    const random = new Random(seed, randomStreams[split], i);
    if (task === "planted") return plantRepeats(this.#genome, { chunks, chunkLength }, random);
    const length = chunks * chunkLength;
    return maskBases(this.#genome, { start: this.#startPosition(split, { length, i, random }), length }, random);
  }

  #startPosition(split: Split, { length, i, random }: { length: number; i: number; random: Random }): number {
    if (split === "training") return drawTrainingStart(this.#genome, length, random);
    const lastStart = HELD_OUT_RANGE.end - HELD_OUT_RANGE.start - length;
    return (
      HELD_OUT_RANGE.start +
      (lastStart > 0 ? (i * Math.min(length, 1 + Math.floor(lastStart / 4))) % (lastStart + 1) : 0)
    );
  }
}

/** This rank's rows of the inputs and targets of a step. Disposing the batch disposes all its tensors. */
interface Batch extends Disposable {
  readonly tokens: Tokens;
  /** [B,S]. */
  readonly targets: Tensor;
}

/** Copies this rank's rows of samples, which must have equal lengths, to its device. */
export function loadBatch(
  ctx: Context,
  samples: readonly Sample[],
  { chunkLength }: Pick<ModelSettings, "chunkLength">,
): Batch {
  const { length } = samples[0]!.bases;
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length });
  const { start, length: rows } = layout.spans(ctx.mesh.coordinate)[0]!;
  const end = start + rows;
  const numSamples = samples.length;
  const tokenIds = samples.flatMap(({ bases }) => Array.from(tokenize(bases, start, end)));
  const targets = samples.flatMap((sample) => Array.from(sample.targets.subarray(start, end)));
  const positions = Array.from({ length: rows }, (_, row) => (start + row) % chunkLength);
  const tensors = {
    tokenIds: fromArray(ctx, tokenIds, [numSamples, rows, WORDS_PER_TOKEN]),
    targets: fromArray(ctx, targets, [numSamples, rows]),
    positions: fromArray(ctx, positions, [rows]),
  };
  return {
    tokens: tensors,
    targets: tensors.targets,
    [Symbol.dispose]: () => Object.values(tensors).forEach((tensor) => tensor.dispose()),
  };
}
