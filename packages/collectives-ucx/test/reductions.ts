// Reductions whose bits depend on the order in which their operands are added.
import { createHash } from "node:crypto";
import { type DType, fromArray, type ProcessGroup, type ReduceOp } from "@mosaic/core";

const ops: readonly ReduceOp[] = ["sum", "mean", "max"];
const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];
/** Numbers of elements below and above the size from which an all-reduce takes two steps. */
const counts = [1, 7, 1313, 100_003];

const reductions = ops.flatMap((op) => dtypes.flatMap((dtype) => counts.map((count) => ({ op, dtype, count }))));

/** Values of all magnitudes, so that their sum depends on the order. */
function rankValues(rank: number, count: number): Float32Array {
  return Float32Array.from({ length: count }, (_, i) => Math.sin(rank * 7919 + i) * 10 ** (((rank * 3 + i) % 7) - 3));
}

/** Resolves to a hash of the results of all reductions on this rank of a group. */
export async function computeDigest(group: ProcessGroup): Promise<string> {
  const hash = createHash("sha256");
  for (const { op, dtype, count } of reductions) {
    const x = fromArray(group.device, rankValues(group.rank, count), [count], { dtype });
    group.allReduce(x, op).wait();
    const values = await x.read();
    hash.update(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
  }
  return hash.digest("hex");
}
