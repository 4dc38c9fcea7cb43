import type { TraceEvent } from "@mosaic/attention";
import type { RankReport } from "./job.ts";

/** A stretch of time, in seconds since the first rank began. */
export interface Interval {
  readonly start: number;
  readonly end: number;
}

/** Attention with, or transfer of, one rank's keys and values. */
export interface Block extends Interval {
  /** The rank whose keys and values these are. */
  readonly source: number;
  readonly backward: boolean;
}

/** One batch of messages, coloured by the keys and values it is about. */
export interface Transfer extends Block {
  /** Payload that this rank sent. */
  readonly bytes: number;
}

/** What one rank did when. */
export interface Lane {
  readonly rank: number;
  readonly compute: readonly Block[];
  readonly communication: readonly Transfer[];
}

/** Puts the traces of all ranks on one clock and says whose keys and values each event is about. */
export function timeline(reports: readonly RankReport[]): readonly Lane[] {
  const zero = Math.min(...reports.map((report) => report.begin));
  return reports.map((report) => {
    const kernels = report.events.filter(isAttention);
    const compute = kernels.map((event, index) => ({
      ...interval(event, zero),
      source: report.sources[index] ?? report.rank,
      backward: isBackward(event),
    }));
    const blocks = join(compute);
    const communication = report.events.filter(isTransfer).map((event) => ({
      ...interval(event, zero),
      ...subjectOf(event, event.start / 1e9 - zero, blocks),
      bytes: event.bytesSent ?? 0,
    }));
    return { rank: report.rank, compute: blocks, communication };
  });
}

/** The share of communication during which the same rank computed; undefined when nothing was sent. */
export function overlap(reports: readonly RankReport[]): number | undefined {
  let total = 0;
  let hidden = 0;
  for (const { events } of reports) {
    const computing = merge(events.filter(isAttention));
    for (const transfer of merge(events.filter(isTransfer))) {
      total += transfer.end - transfer.start;
      for (const { start, end } of computing) {
        hidden += Math.max(0, Math.min(end, transfer.end) - Math.max(start, transfer.start));
      }
    }
  }
  return total > 0 ? hidden / total : undefined;
}

const isAttention = (event: TraceEvent): boolean => event.lane === "compute" && event.name.startsWith("attend");
const isTransfer = (event: TraceEvent): boolean => event.lane === "communication" && (event.bytesSent ?? 0) > 0;
const isBackward = (event: TraceEvent): boolean => event.name.startsWith("attendBackward");
const interval = ({ start, end }: TraceEvent, zero: number): Interval => ({
  start: start / 1e9 - zero,
  end: end / 1e9 - zero,
});

/**
 * Which block a transfer is about: a ring sends on the keys and values that it attends to at that moment, those under
 * way or next to begin; and the gradients of those that it just finished with.
 */
function subjectOf(event: TraceEvent, time: number, blocks: readonly Block[]): { source: number; backward: boolean } {
  const current = blocks.findIndex(({ end }) => end > time);
  const index = current < 0 ? blocks.length : current;
  const block = blocks[event.label?.includes("gradients") ? index - 1 : index] ?? blocks.at(-1);
  return { source: block?.source ?? 0, backward: block?.backward ?? false };
}

/** Neighbours of one kind (the heads of a block, one after another) as one. */
function join(blocks: readonly Block[]): readonly Block[] {
  const joined: Block[] = [];
  for (const block of blocks) {
    const last = joined.at(-1);
    const same = last !== undefined && last.source === block.source && last.backward === block.backward;
    if (same) joined[joined.length - 1] = { ...last, end: Math.max(last.end, block.end) };
    else joined.push(block);
  }
  return joined;
}

/** The union of intervals, in order and disjoint. */
function merge(intervals: readonly Interval[]): readonly Interval[] {
  const merged: Interval[] = [];
  for (const { start, end } of intervals.toSorted((a, b) => a.start - b.start)) {
    const last = merged.at(-1);
    if (last !== undefined && start <= last.end)
      merged[merged.length - 1] = { start: last.start, end: Math.max(last.end, end) };
    else merged.push({ start, end });
  }
  return merged;
}
