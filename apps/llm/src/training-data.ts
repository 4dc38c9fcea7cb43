import { readFileSync } from "node:fs";
import { type Context, dispatch } from "@mosaic/attention";
import { DataLoader, type PlacementFunction, tokenFile } from "@mosaic/attention/nn";
import type { TrainingData } from "./batches.ts";
import { END_TOKEN_ID, folderFilePaths, choosePlacement, readTokenizer } from "./model-folder.ts";
import { chooseNeedleRowOptions, createLaterRowOptions, type NeedleRowOptions } from "./needles/curriculum.ts";
import { NeedleBatches } from "./needles/needle-batches.ts";
import { findFactTokens } from "./needles/needle-text.ts";
import type { TrainSettings } from "./settings.ts";

/** Maximum number of held-out batches in an evaluation. */
const MAX_EVALUATION_BATCHES = 4;

/** Returns the placement of rows. For flex, it is a function that adapts it to the documents of a batch. */
function placementFor(ctx: Context, backend: string): "zigzag" | "contiguous" | PlacementFunction {
  if (backend !== "flex") return choosePlacement(backend);
  const { sp = 1 } = ctx.mesh.shape;
  return (mask, length) => dispatch({ mask, length, ranks: sp });
}

/** Opens the data of a task in a prepared folder. */
export function openTrainingData(ctx: Context, settings: TrainSettings): TrainingData {
  return settings.task === "needles" ? openNeedleData(ctx, settings) : openTextData(ctx, settings);
}

/** Opens the books, packed into rows. */
function openTextData(ctx: Context, { out, backend, length, batch, seed }: TrainSettings): TrainingData {
  const { trainTokens: trainTokensPath, heldOutTokens: heldOutTokensPath } = folderFilePaths(out);
  const sources = [trainTokensPath, heldOutTokensPath].map((path) => tokenFile(path, { separator: END_TOKEN_ID }));
  const options = { rowLength: length, batchSize: batch, seed, placement: placementFor(ctx, backend) };
  const loaders = [true, false].map((shuffle, i) => new DataLoader(ctx, sources[i]!, { ...options, shuffle }));
  const [train, heldOut] = loaders.map((loader) => ({
    next: () => ({ ...loader.next(), length }),
    state: () => loader.state(),
    load: (state: unknown) => loader.load(state as ReturnType<DataLoader["state"]>),
  }));
  return {
    train: train!,
    heldOut: heldOut!,
    numEvaluationBatches: Math.min(MAX_EVALUATION_BATCHES, loaders[1]!.batchesPerEpoch),
    [Symbol.dispose]() {
      for (const source of sources) source[Symbol.dispose]();
    },
  };
}

/**
 * Opens rows of facts in books, which grow during training. Evaluation uses the longest rows, held-out keys and books.
 */
function openNeedleData(ctx: Context, settings: TrainSettings): TrainingData {
  const { out, backend, length, batch, seed, steps } = settings;
  const { trainTokens: trainTokensPath, heldOutTokens: heldOutTokensPath } = folderFilePaths(out);
  const tokens = findFactTokens(readTokenizer(out));
  const options = { batch, seed, placement: placementFor(ctx, backend) };
  const rowOptionsForStep = (step: number): NeedleRowOptions => chooseNeedleRowOptions(step, { steps, length });
  const sources = [trainTokensPath, heldOutTokensPath].map((path, i) => ({
    tokens,
    filler: readTokens(path).filter((token) => token !== END_TOKEN_ID),
    usesUnseenKeysOnly: i === 1,
  }));
  return {
    train: new NeedleBatches(ctx, sources[0]!, { ...options, rowOptionsForStep }),
    heldOut: new NeedleBatches(ctx, sources[1]!, {
      ...options,
      rowOptionsForStep: () => createLaterRowOptions(length),
    }),
    numEvaluationBatches: MAX_EVALUATION_BATCHES,
    [Symbol.dispose]() {},
  };
}

/** Reads a file of tokens. */
function readTokens(path: string): Uint16Array {
  const bytes = readFileSync(path);
  return new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2);
}
