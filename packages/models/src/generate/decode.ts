import { fromArray, layoutOf, noGrad, positions, scope, type Tensor, zeros } from "@mosaic/core";
import type { ModelForwardOptions } from "../model/decoder-layer.ts";
import {
  resolveCacheAxis,
  type CachedModel,
  type GenerationCache,
  type GenerationSequence,
} from "./generation-cache.ts";

/** A model that generates text. */
export interface DecodingModel extends CachedModel {
  readonly decoder: { forward(tokens: Tensor, options: ModelForwardOptions): Tensor };
  project(hidden: Tensor): Tensor;
}

interface CachedText {
  readonly cache: GenerationCache;
  readonly sequence: GenerationSequence;
}

interface CachedTexts {
  readonly cache: GenerationCache;
  readonly sequences: readonly GenerationSequence[];
}

/**
 * Processes the next tokens of a prompt, at most `count`, that are not yet in its sequence. If the backend shards
 * sequences along one axis, the tokens are processed in shards. Returns the logits [V] after the last token of the
 * prompt, otherwise null. Collective.
 */
// oxlint-disable-next-line max-params -- of which model, what, into what, and how much of it
export async function prefill(
  model: DecodingModel,
  prompt: readonly number[],
  { cache, sequence }: CachedText,
  count: number,
): Promise<Float32Array | null> {
  const chunkStart = sequence.length;
  const chunk = prompt.slice(chunkStart, chunkStart + count);
  const isLastChunk = chunkStart + chunk.length === prompt.length;
  const { ctx, settings } = model;
  const { axis, isSharded } = resolveCacheAxis(model);
  if (axis === null || !isSharded) {
    const options = { cache: cache.forCall([sequence]) };
    if (isLastChunk) return readLogits(() => forwardLastRow(model, [chunk], options));
    noGrad(() => scope(() => forward(model, [chunk], options))).dispose();
    return null;
  }
  const { placement } = settings;
  const length = chunk.length;
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: [axis], placement, length });
  const shardPositions = positions(layout.spans(ctx.mesh.coordinate));
  const shardTokens = Array.from(shardPositions, (position) => chunk[position]!);
  const options = { cache: cache.forCall([sequence], { sharded: true }), placement, sequenceLength: length };
  if (!isLastChunk) {
    noGrad(() => scope(() => forward(model, [shardTokens], options))).dispose();
    return null;
  }
  return readLogits(() => {
    using hidden = forward(model, [shardTokens], options);
    const row = shardPositions.indexOf(length - 1);
    // The row of the last token is on one rank, and the others contribute zeros, so the sum is that row.
    const hiddenSize = hidden.shape[2]!;
    const lastHidden =
      row < 0 ? zeros(ctx, [1, 1, hiddenSize], { dtype: hidden.dtype }) : hidden.slice(1, row, row + 1).contiguous();
    ctx.mesh.group(axis).allReduce(lastHidden, "sum", { label: "last token" }).wait();
    return model.project(lastHidden);
  });
}

/**
 * Returns the logits [V] after one more token of each text. All texts share one step, whatever their lengths. Tokens
 * are the same on every rank. Collective.
 */
export async function decode(
  model: DecodingModel,
  tokens: readonly number[],
  { cache, sequences }: CachedTexts,
): Promise<readonly Float32Array[]> {
  const rows = tokens.map((token) => [token]);
  const logits = await readLogits(() => forwardLastRow(model, rows, { cache: cache.forCall(sequences) }));
  const { vocabSize } = model.config;
  return tokens.map((_, i) => logits.subarray(i * vocabSize, (i + 1) * vocabSize));
}

function forwardLastRow(
  model: DecodingModel,
  rows: readonly (readonly number[])[],
  options: ModelForwardOptions,
): Tensor {
  return model.project(forward(model, rows, options).slice(1, -1));
}

function forward(
  { ctx, decoder }: DecodingModel,
  rows: readonly (readonly number[])[],
  options: ModelForwardOptions,
): Tensor {
  using ids = fromArray(ctx, rows.flat(), [rows.length, rows[0]!.length]);
  return decoder.forward(ids, options);
}

async function readLogits(compute: () => Tensor): Promise<Float32Array> {
  using logits = noGrad(() => scope(compute));
  return await logits.read();
}
