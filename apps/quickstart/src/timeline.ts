import type { TraceEvent } from "@mosaic/attention/core";
import type { RankReport } from "./job.ts";
import type { MessageBatch, Payload, RankSchedule, Tile } from "./rank-schedule.ts";

/** A time interval, in seconds since the first rank started. */
export interface Interval {
  readonly start: number;
  readonly end: number;
}

/** Attention of some ranks' queries to some ranks' keys and values. */
export interface Block extends Interval, Tile {}

/** One batch of messages. */
export interface Transfer extends Interval {
  /** Payload that this rank sent. */
  readonly bytes: number;
  readonly isBackward: boolean;
  readonly stage?: number;
  readonly payloads: readonly Payload[];
}

/** The events of one rank. */
export interface Lane {
  readonly rank: number;
  readonly computeBlocks: readonly Block[];
  readonly transfers: readonly Transfer[];
}

/**
 * Combines the traces of all ranks on one clock with their schedules. Traces contain times, and schedules contain
 * contents. The attention events of a rank run in the order of its schedule, and so do the batches of messages of one
 * sender.
 *
 * Throws an error if a rank's trace does not match its schedule.
 */
export function createTimeline(reports: readonly RankReport[], schedules: readonly RankSchedule[]): readonly Lane[] {
  const startTime = Math.min(...reports.map((report) => report.begin));
  return reports.map(({ rank, events }) => {
    const { tiles, batches } = schedules[rank]!;
    const attentionEvents = mergeTileKernels(events.filter(isAttention), tiles);
    checkCount(rank, "attention events", { planned: tiles.length, done: attentionEvents.length });
    const transferEvents = events.filter(isTransfer);
    const transferLabels = transferEvents.map((event) => event.label ?? event.name);
    for (const label of new Set([...batches.map((batch) => batch.label), ...transferLabels]))
      checkCount(rank, `batches of ${label}`, {
        planned: batches.filter((batch) => batch.label === label).length,
        done: transferLabels.filter((transferLabel) => transferLabel === label).length,
      });
    const readBatch = createBatchReader(batches);
    return {
      rank,
      computeBlocks: mergeBlocks(
        attentionEvents.map((event, i) => ({ ...toInterval(event, startTime), ...tiles[i]! })),
      ),
      transfers: transferEvents.map((event, i) => {
        const { label, ...batchFields } = readBatch(transferLabels[i]!);
        checkCount(rank, `bytes in a batch of ${label}`, { planned: batchFields.bytes, done: event.bytesSent });
        return { ...toInterval(event, startTime), ...batchFields };
      }),
    };
  });
}

/** Merges the kernels of each tile. Forward has one kernel per tile; backward may have several, one after another. */
function mergeTileKernels(kernels: readonly TraceEvent[], tiles: readonly Tile[]): readonly TraceEvent[] {
  const numBackwardTiles = tiles.filter((tile) => tile.isBackward).length;
  const numForwardTiles = tiles.length - numBackwardTiles;
  const kernelsPerBackwardTile = (kernels.length - numForwardTiles) / numBackwardTiles;
  // There is nothing to merge, or the counts do not match the plan, which the caller reports.
  if (kernelsPerBackwardTile === 1 || !Number.isInteger(kernelsPerBackwardTile) || kernelsPerBackwardTile < 1)
    return kernels;
  const backwardEvents = Array.from({ length: numBackwardTiles }, (_, i) => {
    const firstKernel = kernels[numForwardTiles + i * kernelsPerBackwardTile]!;
    return { ...firstKernel, end: kernels[numForwardTiles + (i + 1) * kernelsPerBackwardTile - 1]!.end };
  });
  return [...kernels.slice(0, numForwardTiles), ...backwardEvents];
}

/** Returns a function that returns the batches of each sender in order. It must not be called more often. */
function createBatchReader(messageBatches: readonly MessageBatch[]): (label: string) => MessageBatch {
  const nextIndexByLabel = new Map<string, number>();
  return (label) => {
    const startIndex = nextIndexByLabel.get(label) ?? 0;
    const index = messageBatches.findIndex((messageBatch, i) => i >= startIndex && messageBatch.label === label);
    nextIndexByLabel.set(label, index + 1);
    return messageBatches[index]!;
  };
}

function checkCount(
  rank: number,
  eventKind: string,
  { planned: numPlanned, done: numDone }: Record<"planned" | "done", number | undefined>,
): void {
  if (numPlanned === numDone) return;
  throw new Error(`rank ${rank}: expected ${numPlanned} ${eventKind}, as planned; received ${numDone}`);
}

/** Returns the share of communication time in which the same rank computed, or undefined if nothing was sent. */
export function overlapFraction(reports: readonly RankReport[]): number | undefined {
  let transferSeconds = 0;
  let overlappedSeconds = 0;
  for (const { events } of reports) {
    const computeIntervals = mergeIntervals(events.filter(isAttention));
    for (const transfer of mergeIntervals(events.filter(isTransfer))) {
      transferSeconds += transfer.end - transfer.start;
      for (const { start, end } of computeIntervals) {
        overlappedSeconds += Math.max(0, Math.min(end, transfer.end) - Math.max(start, transfer.start));
      }
    }
  }
  return transferSeconds > 0 ? overlappedSeconds / transferSeconds : undefined;
}

const isAttention = (event: TraceEvent): boolean => event.lane === "compute" && event.name.startsWith("attend");
const isTransfer = (event: TraceEvent): boolean => event.lane === "communication" && (event.bytesSent ?? 0) > 0;
const toInterval = ({ start, end }: TraceEvent, origin: number): Interval => ({
  start: start / 1e9 - origin,
  end: end / 1e9 - origin,
});

/** Merges adjacent blocks of the same tile, such as the consecutive heads of a block. */
function mergeBlocks(blocks: readonly Block[]): readonly Block[] {
  const mergedBlocks: Block[] = [];
  for (const block of blocks) {
    const lastBlock = mergedBlocks.at(-1);
    if (lastBlock && isSameTile(lastBlock, block))
      mergedBlocks[mergedBlocks.length - 1] = { ...lastBlock, end: Math.max(lastBlock.end, block.end) };
    else mergedBlocks.push(block);
  }
  return mergedBlocks;
}

function isSameTile(a: Tile, b: Tile): boolean {
  return (
    a.isBackward === b.isBackward &&
    a.stage === b.stage &&
    `${a.queries}` === `${b.queries}` &&
    `${a.keys}` === `${b.keys}`
  );
}

/** Returns the union of intervals, sorted and disjoint. */
function mergeIntervals(intervals: readonly Interval[]): readonly Interval[] {
  const mergedIntervals: Interval[] = [];
  for (const { start, end } of intervals.toSorted((a, b) => a.start - b.start)) {
    const lastInterval = mergedIntervals.at(-1);
    if (lastInterval !== undefined && start <= lastInterval.end)
      mergedIntervals[mergedIntervals.length - 1] = { start: lastInterval.start, end: Math.max(lastInterval.end, end) };
    else mergedIntervals.push({ start, end });
  }
  return mergedIntervals;
}
