import type { TraceEvent } from "@mosaic/core";

/** A group that came of a split: its number among the rank's groups, the place in it, and the world ranks of its members. */
export interface SplitResult {
  readonly index: number;
  readonly rank: number;
  readonly ranks: readonly number[];
}

/** What native code does for one rank. Groups are numbered, the world is 0; failures are thrown as Mosaic's errors. */
export interface CollectivesEngine {
  /** Takes a call as `encode` writes it; answers with its number among all operations of the rank. */
  post(group: number, call: Float64Array, label: string): number;
  /** Later work on the device waits for the operation. */
  wait(operation: number): void;
  /** All operations up to this number are over. */
  completed(): number;
  split(group: number, color: number, name: string): Promise<SplitResult>;
  traffic(group: number): readonly [bytesSent: number, bytesReceived: number, messagesSent: number];
  startTrace(): void;
  stopTrace(): readonly TraceEvent[] | Promise<readonly TraceEvent[]>;
  /** Finishes what was posted, then leaves. */
  close(): Promise<void>;
}
