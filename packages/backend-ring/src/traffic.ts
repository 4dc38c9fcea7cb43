import { type AttentionBackend, type Coordinate, type DType, dtypeBytes, local, type Traffic } from "@mosaic/core";
import { type Need, type NeedCall, needOf } from "./need.ts";
import { around, ranksOf } from "./route.ts";

export interface RingTrafficOptions {
  /** The ring's axis and inner backend, as given to `ring`. */
  readonly axis?: string;
  readonly inner?: AttentionBackend;
  /** Length of every mesh axis. */
  readonly mesh: Coordinate;
  /** The call of the rank in question: its place, the mask, and the layouts of queries and keys. */
  readonly call: NeedCall;
  /** Where its keys come from; `call.at` if absent. */
  readonly from?: Coordinate;
  /** B · Hkv · D: the numbers that make a key, and a value. */
  readonly width: number;
  /** What K and V are stored in. */
  readonly dtype: DType;
}

/**
 * What one rank sends and receives along the ring's axis, in closed form: bytes and messages.
 *
 * Forward, of K and V: a rank receives every foreign chunk that its team sees, once. It passes a chunk on if its right
 * neighbour sees it too, and gives its own to the first rank of every run of neighbours that see it.
 * Backward, of K and V the same again, and of dK and dV, in float32, the mirror image of it: what came from the left
 * neighbour came with that one's sums, and the last rank of every run brings them home. A chunk is two messages.
 *
 * @example
 * ```ts
 * import { causal, contiguous, layoutOf } from "@mosaic/core";
 * import { ringTraffic } from "@mosaic/backend-ring";
 * const mesh = { sp: 4 };
 * const tokens = layoutOf({ mesh, axes: ["sp"], placement: contiguous(), length: 400 });
 * const call = { at: { sp: 3 }, mask: causal().slices(400, 400), queries: tokens, keys: tokens };
 * // The last rank sees all four chunks of 100 keys, and nobody needs its own.
 * ringTraffic({ mesh, call, width: 64, dtype: "float32" }).forward.bytesReceived; // => 153600
 * ringTraffic({ mesh, call, width: 64, dtype: "float32" }).forward.bytesSent; // => 0
 * ```
 */
export function ringTraffic(options: RingTrafficOptions): { readonly forward: Traffic; readonly backward: Traffic } {
  const { axis = "sp", inner = local(), mesh, call, from = call.at, width, dtype } = options;
  const need = needOf({ axis, size: mesh[axis]!, inner }, call, from);
  const rank = from[axis]!;
  const seen = foreign(need, rank);
  const given = runs(need, rank);
  const keys = 2 * width * dtypeBytes[dtype];
  const sums = 2 * width * dtypeBytes.float32;
  const forward = count(keys, { sent: [...handed(need, rank), ...given], received: seen });
  const home = count(sums, { sent: seen, received: [...handed(need, around(rank - 1, need.size)), ...given] });
  return {
    forward,
    backward: {
      bytesSent: forward.bytesSent + home.bytesSent,
      bytesReceived: forward.bytesReceived + home.bytesReceived,
      messagesSent: forward.messagesSent + home.messagesSent,
    },
  };
}

// Each of these gives lengths of chunks, one per transfer.

/** The foreign chunks that a rank sees. */
function foreign(need: Need, rank: number): number[] {
  return ranksOf(need.size)
    .filter((source) => source !== rank && need.fetches(rank, source))
    .map(need.length);
}

/** Those of them that its right neighbour sees as well, to whom they are foreign too. */
function handed(need: Need, rank: number): number[] {
  const right = around(rank + 1, need.size);
  return ranksOf(need.size)
    .filter(
      (source) => source !== rank && source !== right && need.fetches(rank, source) && need.fetches(right, source),
    )
    .map(need.length);
}

/** Its own chunk, once for every run of neighbours that see it. */
function runs(need: Need, rank: number): number[] {
  const others = Array.from({ length: need.size - 1 }, (_, i) => around(rank + 1 + i, need.size));
  const first = (other: number, i: number) =>
    need.fetches(other, rank) && !(i > 0 && need.fetches(others[i - 1]!, rank));
  return others.filter(first).map(() => need.length(rank));
}

function count(bytes: number, { sent, received }: { sent: readonly number[]; received: readonly number[] }): Traffic {
  const sum = (lengths: readonly number[]) => bytes * lengths.reduce((total, length) => total + length, 0);
  return { bytesSent: sum(sent), bytesReceived: sum(received), messagesSent: 2 * sent.length };
}
