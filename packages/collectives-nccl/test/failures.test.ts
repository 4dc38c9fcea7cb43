import { setTimeout as delay } from "node:timers/promises";
import { failureSuite } from "@mosaic/conformance";
import { CollectiveMismatchError, type ProcessGroup, type Tensor } from "@mosaic/core";
import { cuda } from "@mosaic/kernels-cuda";
import { expect, test } from "vitest";
import { world } from "../src/index.ts";
import { emulate } from "./emulated.ts";
import { openRanks, tensor } from "./ranks.ts";

// Always emulated, because NCCL accepts only one rank of a process per GPU, and there may be only one GPU.
emulate();

// NCCL executes mismatched calls that have equal sizes in bytes, such as calls of different dtypes, so notice comes
// late.
const suite = failureSuite(
  (size, { wrapDevice, ...options }) => world(size, { ...options, device: () => wrapDevice(cuda({ index: 0 })) }),
  { lateNotice: true },
);

// Run concurrently, because the tests wait most of the time.
test.concurrent.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

const mismatchRemedy = "; all ranks of a group must call the same collectives in the same order, with the same shapes";

/** Returns the mismatch that ranks 0 and 1 report, both of which wait in operations that cannot complete. */
async function getMismatch(xs: readonly Tensor[]): Promise<string> {
  const errors = await Promise.all(xs.slice(0, 2).map((x) => x.read().catch((error: unknown) => error)));
  expect(errors.map((error) => (error as Error).constructor)).toEqual([
    CollectiveMismatchError,
    CollectiveMismatchError,
  ]);
  const [firstMessage, secondMessage] = errors.map((error) => (error as Error).message);
  expect(secondMessage).toBe(firstMessage);
  return firstMessage!;
}

test("messages of different sizes are reported with both ranks once neither makes progress", async () => {
  await using ranks = await openRanks(2);
  const xs = ranks.devices.map((device) => tensor(device, new Float32Array(20_000), [20_000]));
  const halfTensor = xs[0]!.slice(0, 0, 10_000);
  ranks.groups[0]!.sendRecv([{ tensor: halfTensor, to: 1 }], { label: "ring(sp)" });
  ranks.groups[0]!.sendRecv([{ tensor: xs[0]!, from: 1 }], { label: "ring(sp)" }).wait();
  ranks.groups[1]!.sendRecv([{ tensor: xs[1]!, from: 0 }], { label: "ring(sp)" }).wait();
  expect(await getMismatch(xs)).toBe(
    "ring(sp): rank 0 is at sendRecv #1 (world) float32 [10000], rank 1 at sendRecv #1 (world) float32 [20000]" +
      mismatchRemedy,
  );
});

test("counts of an allGather that differ between ranks are reported as a mismatch", async () => {
  await using ranks = await openRanks(2);
  const outs = ranks.devices.map((device, rank) => tensor(device, new Float32Array(4 + rank), [4 + rank]));
  for (const [rank, { group, out }] of ranks.groups.map((group, i) => ({ group, out: outs[i]! })).entries()) {
    const counts = rank === 0 ? [1, 3] : [3, 2];
    group.allGather(out, tensor(group.device, new Float32Array(counts[rank]!), [counts[rank]!]), { counts }).wait();
  }
  const hash = /, counts [0-9a-f]{8}/g;
  const message = await getMismatch(outs);
  expect(new Set(message.match(hash)).size).toBe(2);
  expect(message.replaceAll(hash, "")).toBe(
    `rank 0 is at allGather #1 (world) float32 [1], rank 1 at allGather #1 (world) float32 [2]${mismatchRemedy}`,
  );
});

test("counts of an allToAll that do not match between ranks are reported as a mismatch", async () => {
  await using ranks = await openRanks(2);
  const outs = ranks.devices.map((device) => tensor(device, new Float32Array(3), [3]));
  const [threeElements, fourElements] = ranks.devices.map((device, rank) =>
    tensor(device, new Float32Array(3 + rank), [3 + rank]),
  );
  ranks.groups[0]!.allToAll(outs[0]!, threeElements!, { send: [1, 2], receive: [1, 2] }).wait();
  ranks.groups[1]!.allToAll(outs[1]!, fourElements!, { send: [3, 1], receive: [2, 1] }).wait();
  for (const group of ranks.groups) group.barrier().wait();
  expect(await getMismatch(outs)).toBe(
    `rank 0 is at allToAll #1 (world) float32 [3] by counts, rank 1 at allToAll #1 (world) float32 [4] by counts${mismatchRemedy}`,
  );
});

test("operations that a rank called before it exited complete, and later ones fail", async () => {
  await using ranks = await openRanks(3);
  const [sentTensor, lateTensor] = [tensor(ranks.devices[0]!, [1], [1]), tensor(ranks.devices[1]!, [2], [1])];
  const receivedTensor = tensor(ranks.devices[2]!, [0, 0], [2]);
  ranks.groups[0]!.broadcast(sentTensor, 0);
  ranks.groups[0]!.sendRecv([{ tensor: sentTensor, to: 2 }]);
  await ranks.groups[0]![Symbol.asyncDispose]();
  // Rank 2 needs rank 0, which has exited, and rank 1, which has not called the operations yet.
  ranks.groups[2]!.broadcast(receivedTensor.slice(0, 0, 1), 0);
  ranks.groups[2]!.sendRecv([
    { tensor: receivedTensor.slice(0, 0, 1), from: 0 },
    { tensor: receivedTensor.slice(0, 1, 2), from: 1 },
  ]).wait();
  const readPromise = receivedTensor.read();
  ranks.groups[1]!.broadcast(tensor(ranks.devices[1]!, [0], [1]), 0);
  ranks.groups[1]!.sendRecv([{ tensor: lateTensor, to: 2 }]);
  expect(Array.from(await readPromise)).toEqual([1, 2]);
  ranks.groups[1]!.broadcast(lateTensor, 0, { label: "sync" }).wait();
  await expect(lateTensor.read()).rejects.toThrow(
    /^sync: rank 0 exited after sendRecv #2 \(world\); rank 1 needed it in broadcast #3 \(world\)$/,
  );
});

/** Waits on the host until calls fail. Shortly afterwards, all posted operations have failed, too. */
async function waitUntilCallsFail(group: ProcessGroup): Promise<void> {
  const callFails = (): boolean => {
    try {
      group.barrier();
      return false;
    } catch {
      return true;
    }
  };
  await expect.poll(callFails, { timeout: 10_000, interval: 5 }).toBe(true);
  await delay(50);
}

// The failed collective's event, which compute has not reached yet, is reused on another stream. Waits for either must
// end.
test("a collective that fails before its operands are ready does not block compute", async () => {
  await using ranks = await openRanks(2);
  await using gate = await openRanks(2);
  gate.groups[0]!.barrier().wait();
  ranks.devices[1]!.stream.wait(gate.devices[0]!.stream.record());
  await ranks.groups[0]![Symbol.asyncDispose]();
  const barrierWork = ranks.groups[1]!.barrier();
  await waitUntilCallsFail(ranks.groups[1]!);
  barrierWork.wait();
  gate.groups[1]!.barrier();
  await expect(ranks.devices[1]!.stream.synchronize()).rejects.toThrow(/rank 0 exited/);
});

test("a timeout reports ranks in one collective as in the same call, despite different sendRecv counts", async () => {
  await using ranks = await openRanks(3, { timeout: 0.5 });
  const xs = ranks.devices.map((device) => tensor(device, [1], [1]));
  ranks.groups[0]!.sendRecv([{ tensor: xs[0]!, to: 1 }]).wait();
  ranks.groups[1]!.sendRecv([{ tensor: xs[1]!, from: 0 }]).wait();
  for (const rank of [0, 2]) ranks.groups[rank]!.allReduce(xs[rank]!).wait();
  const { name, message } = (await xs[0]!.read().catch((error: unknown) => error)) as Error;
  expect(name).toBe("CollectiveTimeoutError");
  expect(message).toMatch(/^timed out after 0\.5 s: rank [02] waits in allReduce #[12] \(world\); /);
  expect(message).toMatch(/; rank [02] waits in the same call/);
  expect(message).toContain("; rank 1 is in no collective, last collective: sendRecv #1 (world)");
});
