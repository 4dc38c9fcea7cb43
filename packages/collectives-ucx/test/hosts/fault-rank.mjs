// A rank of faults.mjs. It runs ring exchanges and all-reduces over UCX between hosts, endlessly or for `rounds`. After
// a failure it checks that no tensor that was only read has changed. One rank may misbehave: "mismatch", "late",
// "throws".
import { createHash } from "node:crypto";
import { openSync, readSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { empty, fromArray, init } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { ucx } from "@mosaic/collectives-ucx";

const { rounds, culprit, fault, at, lateMs, timeout } = JSON.parse(process.argv[2]);
const rank = Number(process.env.RANK);
const hasFault = (kind) => fault === kind && rank === culprit;
if (hasFault("late")) await sleep(lateMs);
const network = "eth0";
const connectTimeout = fault === "late" ? timeout : undefined;
const ctx = await init({ device: cpu({ threads: 1 }), collectives: ucx({ network, connectTimeout }), timeout });
const { size, device, world } = ctx;
const LENGTH = 1 << 18;
const createValues = (index) => Float32Array.from({ length: LENGTH }, (_, i) => ((index + 1) * 31 + i) % 1021);
const sendBuffer = fromArray(ctx, createValues(rank), [LENGTH]);
const receiveBuffer = empty(ctx, [LENGTH]);
const hash = createHash("sha256");

try {
  for (let round = 0; round < (rounds ?? Infinity); round++) {
    const [nextRank, previousRank] = [(rank + 1) % size, (rank + size - 1) % size];
    if (round === at && hasFault("throws")) throw new TypeError("bad loss");
    const count = round === at && hasFault("mismatch") ? LENGTH / 2 : LENGTH;
    world
      .sendRecv([
        { tensor: sendBuffer.view({ shape: [count] }), to: nextRank },
        { tensor: receiveBuffer, from: previousRank },
      ])
      .wait();
    world.allReduce(receiveBuffer).wait();
    await device.stream.synchronize();
    if (rounds !== undefined) hash.update(Buffer.from((await receiveBuffer.read()).buffer));
    // A rank that misbehaves does so in round 4 or later, when all ranks have printed this.
    if (round === 1) console.log("streaming");
  }
  console.log(`digest ${hash.digest("hex")}`);
} catch (error) {
  console.log(`operand ${isUnchanged() ? "unchanged" : "CHANGED"}`);
  throw error;
}
await ctx.close();

/**
 * Whether the operand that is only sent is unchanged. Reads its memory directly, because a failed device rejects reads.
 */
function isUnchanged() {
  const bytes = Buffer.alloc(sendBuffer.storage.byteLength);
  const memory = openSync("/proc/self/mem");
  readSync(memory, bytes, 0, bytes.length, sendBuffer.storage.handle);
  return bytes.subarray(0, 4 * LENGTH).equals(Buffer.from(createValues(rank).buffer));
}
