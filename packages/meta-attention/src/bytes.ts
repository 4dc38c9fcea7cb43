import type { Chunks } from "./chunks.ts";
import type { Edge, Edges } from "./exchange/edges.ts";

const FLOAT = 4;

/** Bytes that one rank sends and receives. */
export interface Flow {
  readonly sent: number;
  readonly received: number;
}

/** What one forward and its backward move on this rank, in bytes, and what ring attention would for the same sequence. */
export interface BytesMoved {
  readonly forward: Flow;
  readonly backward: Flow;
  readonly ring: { readonly forward: Flow; readonly backward: Flow };
}

/** What the bytes follow from. */
export interface BytesCall {
  readonly chunks: Chunks;
  readonly batch: number;
  /** H·D: the numbers that make a key, and a value. */
  readonly width: number;
  /** Numbers gathered for each chunk and batch element, and how many of them have a gradient. */
  readonly gathered: number;
  readonly summaryDim: number;
  /** Numbers gathered for each chunk and batch element to decide about more chunks; 0 if that is not done. */
  readonly secondGather: number;
  readonly edges: readonly Edges[];
  readonly useCheckpoint: boolean;
  readonly causal: boolean;
}

/** The closed forms; docs/algorithms.md. */
export function bytesMoved(call: BytesCall): BytesMoved {
  const { chunks, batch, width, edges } = call;
  const share = (chunks.ranks - 1) * chunks.perRank * batch * FLOAT;
  const both = (list: readonly Edge[]): number =>
    list.reduce((sum, { chunk, b0, b1 }) => sum + (b1 - b0) * 2 * width * chunk.length * FLOAT, 0);
  const sent = edges.reduce((sum, { sends }) => sum + both(sends), 0);
  const received = edges.reduce((sum, { receives }) => sum + both(receives), 0);
  const gather = share * (call.gathered + call.secondGather);
  const back = share * call.summaryDim;
  const again = call.useCheckpoint ? 1 : 0;
  return {
    forward: { sent: gather + sent, received: gather + received },
    backward: { sent: back + received + again * sent, received: back + sent + again * received },
    ring: ringBytes(call),
  };
}

/**
 * Ring attention over the same shards, contiguous: K and V of every shard that is seen, and, backward, float32 dK and dV
 * from the one after the owner around to it. Equal to `ringTraffic` of @mosaic/backend-ring.
 */
function ringBytes({ chunks, batch, width, causal }: BytesCall): BytesMoved["ring"] {
  const { rank, ranks } = chunks;
  const lengths = Array.from({ length: ranks }, (_, owner) =>
    chunks.all.reduce((sum, { owner: of, length }) => sum + (of === owner ? length : 0), 0),
  );
  const right = (rank + 1) % ranks;
  const left = (rank + ranks - 1) % ranks;
  const bytes = (counts: (owner: number) => boolean): number =>
    lengths.reduce((sum, length, owner) => sum + (counts(owner) ? length : 0), 0) * 2 * batch * width * FLOAT;
  const sees = (who: number, owner: number): boolean => owner !== who && (!causal || owner < who);
  const others = Array.from({ length: ranks }, (_, other) => other).filter((other) => other !== rank);
  const isSeen = others.some((other) => sees(other, rank));
  const keys = {
    sent: bytes((owner) => (owner === rank ? isSeen : sees(rank, owner) && sees(right, owner))),
    received: bytes((owner) => sees(rank, owner)),
  };
  const sums = {
    sent: keys.received,
    received: bytes((owner) => (owner === rank ? isSeen : sees(left, owner) && sees(rank, owner))),
  };
  return {
    forward: keys,
    backward: { sent: keys.sent + sums.sent, received: keys.received + sums.received },
  };
}
