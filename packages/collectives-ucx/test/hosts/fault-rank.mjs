// A rank of faults.mjs: rings of messages and all-reduces without end, or `rounds` of them, over UCX between hosts. After a failure it
// checks that no tensor which was only read has changed. One rank may misbehave: "mismatch", "late", "throws".
import { createHash } from "node:crypto";
import { openSync, readSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { empty, fromArray, init } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { ucx } from "@mosaic/collectives-ucx";

const { rounds, culprit, fault, at, lateMs, timeout } = JSON.parse(process.argv[2]);
const rank = Number(process.env.RANK);
const misbehaves = (kind) => fault === kind && rank === culprit;
if (misbehaves("late")) await sleep(lateMs);
const network = "eth0";
const connectTimeout = fault === "late" ? timeout : undefined;
const ctx = await init({ device: cpu({ threads: 1 }), collectives: ucx({ network, connectTimeout }), timeout });
const { size, device, world } = ctx;
const LENGTH = 1 << 18;
const valuesOf = (index) => Float32Array.from({ length: LENGTH }, (_, i) => ((index + 1) * 31 + i) % 1021);
const sent = fromArray(ctx, valuesOf(rank), [LENGTH]);
const received = empty(ctx, [LENGTH]);
const hash = createHash("sha256");

try {
  for (let round = 0; round < (rounds ?? Infinity); round++) {
    const [next, previous] = [(rank + 1) % size, (rank + size - 1) % size];
    if (round === at && misbehaves("throws")) throw new TypeError("bad loss");
    const count = round === at && misbehaves("mismatch") ? LENGTH / 2 : LENGTH;
    world
      .sendRecv([
        { tensor: sent.view({ shape: [count] }), to: next },
        { tensor: received, from: previous },
      ])
      .wait();
    world.allReduce(received).wait();
    await device.stream.synchronize();
    if (rounds !== undefined) hash.update(Buffer.from((await received.read()).buffer));
    // A rank that misbehaves in round 4 or later does so when all have printed this.
    if (round === 1) console.log("streaming");
  }
  console.log(`digest ${hash.digest("hex")}`);
} catch (error) {
  console.log(`operand ${isUnchanged() ? "unchanged" : "CHANGED"}`);
  throw error;
}
await ctx.close();

/** Whether the operand that is only sent has its values still: read where it lies, for the device no longer serves reads. */
function isUnchanged() {
  const bytes = Buffer.alloc(sent.storage.byteLength);
  const memory = openSync("/proc/self/mem");
  readSync(memory, bytes, 0, bytes.length, sent.storage.handle);
  return bytes.subarray(0, 4 * LENGTH).equals(Buffer.from(valuesOf(rank).buffer));
}
