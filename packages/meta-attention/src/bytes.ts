import { ringTraffic } from "@mosaic/backend-ring";
import { type DType, dtypeBytes, type Layout, type Traffic } from "@mosaic/core";
import type { Chunks } from "./chunks.ts";
import type { ChunkTransfer, ChunkTransfers } from "./exchange/chunk-transfers.ts";

const FLOAT_BYTES = dtypeBytes.float32;

/** Bytes that one rank sends and receives. */
export interface TransferBytes {
  readonly sent: number;
  readonly received: number;
}

/** Bytes that one forward and its backward transfer on this rank, and those of ring attention for the same sequence. */
export interface BytesMoved {
  readonly forward: TransferBytes;
  readonly backward: TransferBytes;
  readonly ring: { readonly forward: TransferBytes; readonly backward: TransferBytes };
}

/** Parameters that determine the bytes. */
export interface BytesMovedInput {
  readonly chunks: Chunks;
  readonly batch: number;
  /** Hkv·D, the number of elements of a key, and of a value. */
  readonly width: number;
  /** The dtype in which keys and values are sent. Everything else is float32. */
  readonly dtype: DType;
  /**
   * Number of elements gathered for each chunk and batch element, and how many of them have a gradient (`summaryDim`).
   */
  readonly summaryWidth: number;
  readonly summaryDim: number;
  /**
   * Number of elements gathered for each chunk and batch element to select additional chunks; 0 without this selection.
   */
  readonly extensionWidth: number;
  readonly plannedTransfers: readonly ChunkTransfers[];
  readonly useCheckpoint: boolean;
}

/** Computes the bytes with the closed forms of docs/algorithms.md. */
export function bytesMoved(call: BytesMovedInput): BytesMoved {
  const { chunks, batch, width, plannedTransfers, dtype } = call;
  const gatherBytesPerFeature = (chunks.ranks - 1) * chunks.chunksPerRank * batch * FLOAT_BYTES;
  const countElements = (transfers: readonly ChunkTransfer[]): number =>
    transfers.reduce((sum, { chunk, b0, b1 }) => sum + (b1 - b0) * 2 * width * chunk.length, 0);
  const sent = plannedTransfers.reduce((sum, { sends }) => sum + countElements(sends), 0);
  const received = plannedTransfers.reduce((sum, { receives }) => sum + countElements(receives), 0);
  const elementBytes = dtypeBytes[dtype];
  const gatheredBytes = gatherBytesPerFeature * (call.summaryWidth + call.extensionWidth);
  const backwardGatherBytes = gatherBytesPerFeature * call.summaryDim;
  const recomputedElementBytes = call.useCheckpoint ? elementBytes : 0;
  return {
    forward: { sent: gatheredBytes + elementBytes * sent, received: gatheredBytes + elementBytes * received },
    backward: {
      sent: backwardGatherBytes + FLOAT_BYTES * received + recomputedElementBytes * sent,
      received: backwardGatherBytes + FLOAT_BYTES * sent + recomputedElementBytes * received,
    },
    ring: ringBytes(call),
  };
}

/** Returns the bytes of ring attention over the same shards. */
function ringBytes({ chunks, batch, width, dtype }: BytesMovedInput): BytesMoved["ring"] {
  const { rank, ranks, shards, mask, length } = chunks;
  const rows: Layout = { length, axes: ["sp"], spans: ({ sp }) => shards[sp!]! };
  const call = { at: { sp: rank }, mask, queries: rows, keys: rows };
  const { forward, backward } = ringTraffic({ mesh: { sp: ranks }, call, width: batch * width, dtype });
  const toTransferBytes = ({ bytesSent, bytesReceived }: Traffic): TransferBytes => ({
    sent: bytesSent,
    received: bytesReceived,
  });
  return { forward: toTransferBytes(forward), backward: toTransferBytes(backward) };
}
