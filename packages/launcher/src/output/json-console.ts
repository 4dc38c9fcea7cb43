import type { LaunchEvent, LineEvent } from "../job.ts";
import type { OutputSink } from "./sink.ts";

/**
 * Shows a job as NDJSON: a line of a rank is `{time,node,rank,attempt,stream,msg}`, everything else `{time,node,event,…}`.
 * What is no line has a `kind`: `progress`, or `part`, a piece that the rank's next one of that stream continues.
 * Ranks that `shown` leaves out keep their events and lose their lines.
 */
export function createJsonConsole(sink: OutputSink, shownRanks: ReadonlySet<number>): (event: LaunchEvent) => void {
  return (event) => {
    if (event.type === "line" && (!shownRanks.has(event.rank) || isRedundantProgress(event))) return;
    sink.write(`${JSON.stringify(event.type === "line" ? lineObject(event) : eventObject(event))}\n`);
  };
}

/** Ranks report progress in step: one of them is enough. */
const isRedundantProgress = ({ kind, rank }: LineEvent): boolean => kind === "progress" && rank !== 0;

function lineObject(event: LineEvent): object {
  const { time, node, rank, attempt, stream, kind, text, uncaught } = event;
  return {
    time,
    node,
    rank,
    attempt,
    stream,
    msg: text,
    ...(kind === "line" ? {} : { kind }),
    ...(uncaught === true ? { uncaught } : {}),
  };
}

function eventObject({ type, time, node, ...eventFields }: Exclude<LaunchEvent, LineEvent>): object {
  return { time, node, event: type, ...eventFields };
}
