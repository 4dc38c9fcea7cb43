/** One piece of work that ran: on a device's compute stream ("compute") or in the collectives ("communication"). */
export interface TraceEvent {
  readonly lane: "compute" | "communication";
  /** The kernel's or collective's name, e.g. "attend" or "sendRecv". */
  readonly name: string;
  /** Nanoseconds of CLOCK_MONOTONIC, which all processes of a host share. `start`: when it could begin to run. */
  readonly start: number;
  readonly end: number;
  /** Communication only: the caller's label, e.g. "ring(sp)", and the payload in bytes. */
  readonly label?: string;
  readonly bytesSent?: number;
  readonly bytesReceived?: number;
}
