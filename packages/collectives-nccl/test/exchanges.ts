import { createHash } from "node:crypto";
import type { Context, ProcessGroup, Tensor } from "@mosaic/core";
import { tensor } from "./ranks.ts";

/** Elements of each rank: more than fit into a socket buffer, and not divisible by the number of ranks. */
const count = 300_007;

const values = (rank: number, length: number): Float32Array =>
  Float32Array.from({ length }, (_, i) => Math.fround(Math.sin((rank + 1) * (i + 1))));

/**
 * Resolves to the SHA-256 of this rank's results of every collective, in the group of all ranks and in those of its
 * mesh axes.
 */
export async function computeExchangeDigest(ctx: Context): Promise<string> {
  const hash = createHash("sha256");
  const groups = [ctx.world, ...Object.keys(ctx.mesh.shape).map((axis) => ctx.mesh.group(axis))];
  for (const group of groups) {
    for (const result of exchange(group, ctx.rank)) {
      const resultValues = await result.read();
      hash.update(new Uint8Array(resultValues.buffer, resultValues.byteOffset, resultValues.byteLength));
    }
  }
  return hash.digest("hex");
}

function exchange(group: ProcessGroup, worldRank: number): Tensor[] {
  const { device, rank, size } = group;
  const createInput = (): Tensor => tensor(device, values(worldRank, count), [count]);
  const sum = createInput();
  group.allReduce(sum).wait();
  const gathered = tensor(device, new Float32Array(size * count), [size * count]);
  group.allGather(gathered, createInput()).wait();
  const broadcast = createInput();
  group.broadcast(broadcast, size - 1).wait();
  const scatterInput = tensor(device, values(worldRank, size * 1000), [size * 1000]);
  const scattered = tensor(device, new Float32Array(1000), [1000]);
  group.reduceScatter(scattered, scatterInput).wait();
  const exchanged = tensor(device, new Float32Array(size * 1000), [size * 1000]);
  group.allToAll(exchanged, scatterInput).wait();
  const received = tensor(device, new Float32Array(count), [count]);
  group
    .sendRecv([
      { tensor: createInput(), to: (rank + 1) % size },
      { tensor: received, from: (rank + size - 1) % size },
    ])
    .wait();
  return [sum, gathered, broadcast, scattered, exchanged, received];
}
