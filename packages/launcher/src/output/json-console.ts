import type { LaunchEvent, LineEvent } from "../job.ts";
import type { OutputSink } from "./sink.ts";

/**
 * Creates a console that writes NDJSON: a line of a rank is `{time,node,rank,attempt,stream,msg}`, any other event
 * `{time,node,event,…}`. Incomplete lines have a `kind`: `progress`, or `part`, a piece that is continued by the rank's
 * next one on that stream. For ranks that are not in `shownRanks`, events are written and lines are omitted.
 */
export function createJsonConsole(sink: OutputSink, shownRanks: ReadonlySet<number>): (event: LaunchEvent) => void {
  return (event) => {
    if (event.type === "line" && (!shownRanks.has(event.rank) || isRedundantProgress(event))) return;
    sink.write(`${JSON.stringify(event.type === "line" ? lineObject(event) : eventObject(event))}\n`);
  };
}

/**
 * Whether an event is progress of a rank other than 0. Ranks progress together, so rank 0's progress is
 * sufficient.
 */
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
