import type { Op } from "../symbolic/tape.ts";
import type { Use } from "./rank-memory.ts";

/** A collective that a rank posted. */
export interface Batch {
  readonly rank: number;
  readonly work: number;
  readonly op: Op;
  readonly group: number;
  readonly label: string;
  readonly phase: string;
  /** Messages, if it is sendRecv. */
  readonly transfers: readonly Transfer[];
  /** Arguments from the call's number on, if it is another. */
  readonly args: readonly number[];
  /** Messages that have not met their other half. */
  open: number;
}

/** One message of a sendRecv; the peer is a world rank. */
export interface Transfer {
  readonly peer: number;
  readonly sent: boolean;
  readonly view: number;
}

/** A batch, as messages name it. */
export function batchText({ rank, phase, label, work }: Batch): string {
  return `rank ${rank}, ${phase}, ${label} #${work}`;
}

/** What a collective is known by among those of all groups. */
export function meetingOf({ group, args }: Batch): string {
  return `${group},${args[0]}`;
}

/** What a collective does with memory. */
export function usesOf({ op, transfers, args }: Batch): Use[] {
  if (op === "sendRecv") return transfers.map(({ sent, view }) => ({ view, written: !sent }));
  const [, out, input] = args as [number, number, number];
  const uses = [
    { view: out, written: true },
    { view: input, written: false },
  ];
  return uses.filter(({ view }) => view >= 0);
}
