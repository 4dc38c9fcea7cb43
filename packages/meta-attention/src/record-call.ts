import type { ProcessGroup, Tensor } from "@mosaic/core";
import { formatShards, formatSlices, hashNumbers } from "@mosaic/core/context-parallel";
import type { Chunks } from "./chunks.ts";
import type { ChosenChunks } from "./route/choose.ts";
import type { NoiseSpec } from "./route/router.ts";
import type { ResolvedOptions, RoutedAttentionConfig } from "./options.ts";

// Records calls on which ranks must agree, but which no message shows. Each rank derives alone, from options, mask and
// chunks, what it sends, and for some choices a rank expects no message at all. Therefore a forward records its routing
// and the chunks it attends to, and a backward the chunks for which it returns gradients.

/** Maximum number of lists of chunks that a description contains in full. */
const MAX_LISTED_CHUNKS = 16;

/** Parameters that determine the routing of a call. */
export interface RoutingCall {
  readonly topK: number;
  readonly noise: NoiseSpec | null;
  /** Undefined if the router chooses. */
  readonly chosen: ChosenChunks | undefined;
  readonly dryRun: boolean;
}

/** Records a forward before it gathers anything. Nothing is sent. */
export function recordRouting(
  config: RoutedAttentionConfig,
  x: Tensor,
  settings: ResolvedOptions,
  call: RoutingCall,
): void {
  record(config.group, () => {
    const { topK, noise, chosen, dryRun } = call;
    const { chunks } = config;
    const { numHeads, numKvHeads, headDim, combine, scale } = settings;
    const choiceText = chosen
      ? `given chunks ${formatChosenChunks([chosen])}`
      : `top ${topK} of ${chunks.all.length} chunks`;
    const fields = [
      `${config.label} routing: ${choiceText}`,
      `${chunks.chunksPerRank} chunks per rank`,
      `${x.dtype} [${x.shape[0]},S,${x.shape[2]}]`,
      `heads ${numHeads}/${numKvHeads} of size ${headDim}`,
      `${combine}, scale ${scale}`,
      formatChunking(chunks),
      ...formatOptions(settings),
      ...(noise ? [`noise of std ${noise.std}, stream ${noise.stream}, step ${noise.step}`] : []),
      ...(dryRun ? ["dry run"] : []),
    ];
    return fields.join(", ");
  });
}

/** Records which chunks are attended to, before any is sent. */
export function recordAttention({ group, label }: RoutedAttentionConfig, chosen: ChosenChunks): void {
  record(group, () => `${label} attends to chunks ${formatChosenChunks([chosen])}`);
}

/** Records a backward, which returns gradients for the chunks that each call of `attendChosenChunks` attended to. */
export function recordBackward({ group, label }: RoutedAttentionConfig, calls: readonly ChosenChunks[]): void {
  record(group, () => `${label} backward of chunks ${formatChosenChunks(calls)}`);
}

/** Records a call, unless the group has one rank and nothing to compare. */
function record(group: ProcessGroup, description: () => string): void {
  if (group.size > 1) group.recordCall(description);
}

function formatOptions(settings: ResolvedOptions): string[] {
  const { summaryDim, metaHeads, summaryHeads, gate, certificate, maxMissedMass, useCheckpoint, positions } = settings;
  return [
    `summary size ${summaryDim}, summary heads ${summaryHeads}, meta heads ${metaHeads}`,
    ...(gate ? ["gate"] : []),
    ...(positions ? ["positions"] : []),
    ...(certificate ? ["certificate"] : []),
    ...(maxMissedMass === undefined ? [] : [`maxMissedMass ${maxMissedMass}`]),
    ...(useCheckpoint ? ["checkpoint"] : []),
  ];
}

/** Descriptions of chunks, which are cached because chunks are reused by later calls and masks may have many slices. */
const chunkingTexts = new WeakMap<Chunks, string>();

function formatChunking(chunks: Chunks): string {
  let text = chunkingTexts.get(chunks);
  if (text === undefined) {
    text = `mask ${formatSlices(chunks.mask)}, rows ${chunks.length}: ${formatShards(chunks.shards)}`;
    chunkingTexts.set(chunks, text);
  }
  return text;
}

/**
 * Formats lists of chunks, `[1] [0]`, by batch element and query chunk; if there are many, the first ones and a hash of
 * all.
 */
function formatChosenChunks(calls: readonly ChosenChunks[]): string {
  const numbers: number[] = [];
  const listTexts: string[] = [];
  let numLists = 0;
  for (const chosen of calls) {
    numbers.push(-chosen.length - 1);
    for (const chunksByQuery of chosen) {
      for (const chunks of chunksByQuery) {
        if (numLists++ < MAX_LISTED_CHUNKS) listTexts.push(`[${chunks.join(",")}]`);
        numbers.push(-1);
        for (const chunk of chunks) numbers.push(chunk);
      }
    }
  }
  return `${listTexts.join(" ")}${numLists > MAX_LISTED_CHUNKS ? " …" : ""} (${numLists} lists, hash ${hashNumbers(numbers)})`;
}
