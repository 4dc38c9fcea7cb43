import type { Traffic } from "../collectives/process-group.ts";
import type { DType } from "../dtype.ts";
import type { Coordinate } from "../mesh.ts";
import type { PlacedCall } from "./dependencies.ts";

/** What every backend's traffic follows from, whatever else it needs. */
export interface TrafficOptions {
  /** The backend's axis, "sp" if absent. */
  readonly axis?: string;
  /** Length of every mesh axis. */
  readonly mesh: Coordinate;
  /** The call of the rank in question: its place, the mask, and the layouts of queries and keys. */
  readonly call: PlacedCall;
  /** Where its keys come from; `call.at` if absent. */
  readonly from?: Coordinate;
  /** What q, k, v and dOut are stored in. */
  readonly dtype: DType;
}

/** What one rank sends and receives along the axis, in each half of a call. */
export interface CallTraffic {
  readonly forward: Traffic;
  readonly backward: Traffic;
}

/** Chunks of one kind that a rank sends and receives. */
export interface ChunkFlow {
  /** Bytes per row, or per row and head, of each tensor of a chunk: a message each. */
  readonly bytesPerRow: readonly number[];
  /** Rows, or rows times heads, of each chunk; those of none are no message. */
  readonly sent: readonly number[];
  readonly received: readonly number[];
}

/** The same chunks the other way: what is sent back for what was received, of so many bytes per row. */
export function returned({ sent, received }: ChunkFlow, bytesPerRow: readonly number[]): ChunkFlow {
  return { bytesPerRow, sent: received, received: sent };
}

/**
 * The traffic that flows of chunks come to.
 *
 * @example
 * ```ts
 * import { trafficOf } from "@mosaic/core/context-parallel";
 * // K and V of 100 and of 50 rows are sent, 8 bytes per row each, and those of 100 are received.
 * trafficOf([{ bytesPerRow: [8, 8], sent: [100, 50], received: [100] }]);
 * // => { bytesSent: 2400, bytesReceived: 1600, messagesSent: 4 }
 * ```
 */
export function trafficOf(flows: readonly ChunkFlow[]): Traffic {
  return {
    bytesSent: sum(flows.map(({ bytesPerRow, sent }) => sum(bytesPerRow) * sum(sent))),
    bytesReceived: sum(flows.map(({ bytesPerRow, received }) => sum(bytesPerRow) * sum(received))),
    messagesSent: sum(
      flows.map(({ bytesPerRow, sent }) => bytesPerRow.length * sent.filter((rows) => rows > 0).length),
    ),
  };
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, each) => total + each, 0);
}
