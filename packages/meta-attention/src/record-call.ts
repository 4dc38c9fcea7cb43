import type { ProcessGroup, Tensor } from "@mosaic/core";
import { formatShards, formatSlices, hashNumbers } from "@mosaic/core/context-parallel";
import type { AttendPlan } from "./attend/plan.ts";
import type { Chunks } from "./chunks.ts";
import type { Chosen } from "./route/choose.ts";
import type { NoiseSpec } from "./route/router.ts";
import type { ResolvedOptions } from "./settings.ts";

// What ranks must agree on and no message shows: each derives alone, from options, mask and chunks, what it sends, and under some
// choices a rank expects no message at all. So a forward records how it routes and what it looks at, a backward what it returns.

/** Lists of chunks that a description has in full. */
const NAMED = 16;

/** What a call's routing follows from. */
export interface RoutingCall {
  readonly topK: number;
  readonly noise: NoiseSpec | null;
  /** Undefined if the router chooses. */
  readonly chosen: Chosen | undefined;
  readonly dryRun: boolean;
}

/** Records a forward before it gathers anything. Nothing is sent. */
export function recordRouting(plan: AttendPlan, x: Tensor, settings: ResolvedOptions, call: RoutingCall): void {
  record(plan.group, () => {
    const { topK, noise, chosen, dryRun } = call;
    const { chunks } = plan;
    const { numHeads, numKvHeads, headDim, combine, scale } = settings;
    const choice = chosen ? `${chosenText([chosen])} given` : `top ${topK} of ${chunks.all.length}`;
    const parts = [
      `${plan.label} routes: chunks ${choice}`,
      `${chunks.perRank} on each rank`,
      `${x.dtype} [${x.shape[0]},S,${x.shape[2]}]`,
      `heads ${numHeads}/${numKvHeads} of ${headDim}`,
      `${combine}, scale ${scale}`,
      placeText(chunks),
      ...optionsText(settings),
      ...(noise ? [`noise ${noise.std}, stream ${noise.stream}, step ${noise.step}`] : []),
      ...(dryRun ? ["dry run"] : []),
    ];
    return parts.join(", ");
  });
}

/** Records which chunks are looked at, before any is sent. */
export function recordLook({ group, label }: AttendPlan, chosen: Chosen): void {
  record(group, () => `${label} attends to chunks ${chosenText([chosen])}`);
}

/** Records a backward, which returns gradients for the chunks of all looks. */
export function recordBackward({ group, label }: AttendPlan, looks: readonly Chosen[]): void {
  record(group, () => `${label} backward of chunks ${chosenText(looks)}`);
}

/** A rank alone has nobody to disagree with. */
function record(group: ProcessGroup, description: () => string): void {
  if (group.size > 1) group.recordCall(description);
}

function optionsText(settings: ResolvedOptions): string[] {
  const { summaryDim, metaHeads, summaryHeads, gate, certificate, maxMissedMass, useCheckpoint, positions } = settings;
  return [
    `summaries of ${summaryDim} by ${summaryHeads} heads, meta heads ${metaHeads}`,
    ...(gate ? ["gate"] : []),
    ...(positions ? ["positions"] : []),
    ...(certificate ? ["certificate"] : []),
    ...(maxMissedMass === undefined ? [] : [`maxMissedMass ${maxMissedMass}`]),
    ...(useCheckpoint ? ["checkpoint"] : []),
  ];
}

/** Chunks are kept from call to call, and masks may have many slices. */
const placeTexts = new WeakMap<Chunks, string>();

function placeText(chunks: Chunks): string {
  let text = placeTexts.get(chunks);
  if (text === undefined) {
    text = `mask ${formatSlices(chunks.mask)}, rows ${chunks.length}: ${formatShards(chunks.shards)}`;
    placeTexts.set(chunks, text);
  }
  return text;
}

/** `[[1],[0]]`, by batch element and query chunk; of many lists the first ones and a hash of all. */
function chosenText(looks: readonly Chosen[]): string {
  const numbers: number[] = [];
  const named: string[] = [];
  let lists = 0;
  for (const chosen of looks) {
    numbers.push(-chosen.length - 1);
    for (const ofBatch of chosen) {
      for (const chunks of ofBatch) {
        if (lists++ < NAMED) named.push(`[${chunks.join(",")}]`);
        numbers.push(-1);
        for (const chunk of chunks) numbers.push(chunk);
      }
    }
  }
  return `${named.join(" ")}${lists > NAMED ? " …" : ""} (${lists} lists, ${hashNumbers(numbers)})`;
}
