import { denseToSparse } from "@mosaic/attention/meta";
import { SUMMARY_HEADS } from "./attending.ts";
import type { ModelSettings, Settings } from "./settings.ts";
import { WORDS } from "./words.ts";

// What a training costs, by closed form. A multiply-add of a forward counts once more for each of the two products that its
// backward makes of it.

const FORWARD_AND_BACKWARD = 3;

/** Chunks that each chunk looks at beside its own, at a step. */
export function looksAt(step: number, { method, topK, chunks, warmup: steps }: ModelSettings): number {
  if (method === "ring") return chunks - 1;
  return method === "local" ? 0 : denseToSparse(step, { topK, chunks, steps });
}

/** Multiply-adds of a step, all ranks together. */
export function workOf(step: number, settings: Settings): number {
  const { embedDim: e, layers, chunks, chunkLength, batch, method } = settings;
  const keys = (1 + looksAt(step, settings)) * chunkLength;
  const projectionsAndMlp = (3 + 1 + 4 + 4) * e * e;
  const summaries = method === "meta" ? 2 * SUMMARY_HEADS * e : 0;
  const perToken = layers * (projectionsAndMlp + 2 * keys * e + summaries) + WORDS * e + 4 * e;
  return FORWARD_AND_BACKWARD * batch * chunks * chunkLength * perToken;
}

/** How many steps a training may take before it has done so many multiply-adds. */
export function stepsWithin(work: number, settings: Settings): number {
  let [steps, done] = [0, workOf(0, settings)];
  while (done <= work) done += workOf(++steps, settings);
  return steps;
}
