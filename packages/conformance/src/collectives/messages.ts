import type { ProcessGroup, Tensor, Transfer } from "@mosaic/core";
import { type Case, check } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import { checkTensorValues, dtypes, groupRanks, recvBuffer, runOnRanks, makeTensor, rankValues } from "./tensors.ts";

/** sendRecv, and the traffic it counts. */
export function messageCases(makeWorld: MakeWorld, size: number): Case[] {
  const on = (name: string, body: (group: ProcessGroup) => Promise<void>): Case => ({
    name: `${name}, ${size} ranks`,
    run: () => runOnRanks(makeWorld, size, (ctx) => body(ctx.world)),
  });
  return [
    ...dtypes.map((dtype) => on(`sendRecv around a ring, ${dtype}`, (group) => ringExchange(group, dtype))),
    on("all-to-all sendRecv, with message sizes from 0", allPairs),
    on("sendRecv preserves message order between two ranks", preservesOrder),
    on("sendRecv within a subset of the ranks", pairwiseExchange),
    on("traffic counts payloads", countsTraffic),
  ];
}

async function ringExchange(group: ProcessGroup, dtype: (typeof dtypes)[number]): Promise<void> {
  const { rank, size } = group;
  for (const length of [1, 7, 1024, 100_003]) {
    using out = makeTensor(group, rankValues(rank, length, dtype), { dtype });
    using arriving = recvBuffer(group, length, dtype);
    const left = (rank + size - 1) % size;
    group
      .sendRecv([
        { tensor: arriving, from: left },
        { tensor: out, to: (rank + 1) % size },
      ])
      .wait();
    await checkTensorValues(
      arriving,
      rankValues(left, length, dtype),
      `${length} numbers from rank ${left} on rank ${rank}`,
    );
  }
}

/** The message from a to b has a·size + b elements: every size is different, and one is 0. */
async function allPairs(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  const messageLength = (from: number, to: number) => from * size + to;
  const sent = groupRanks(group).map((to) =>
    makeTensor(group, messageContent(rank, to, messageLength(rank, to)), { dtype: "float32" }),
  );
  const received = groupRanks(group).map((from) => recvBuffer(group, messageLength(from, rank), "float32"));
  const transfers: Transfer[] = [
    ...sent.map((tensor, to) => ({ tensor, to })),
    ...received.map((tensor, from) => ({ tensor, from })),
  ];
  group.sendRecv(transfers).wait();
  for (const [from, tensor] of received.entries()) {
    await checkTensorValues(
      tensor,
      messageContent(from, rank, messageLength(from, rank)),
      `message from rank ${from} on rank ${rank}`,
    );
  }
  for (const tensor of [...sent, ...received]) tensor[Symbol.dispose]();
}

function messageContent(from: number, to: number, length: number): Float64Array {
  return Float64Array.from({ length }, (_, i) => 10_000 * from + 100 * to + i);
}

async function preservesOrder(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  const right = (rank + 1) % size;
  const left = (rank + size - 1) % size;
  const sent = [1, 2, 3].map((i) => makeTensor(group, [rank, i], { dtype: "float32" }));
  const received: Tensor[] = sent.map(() => recvBuffer(group, 2, "float32"));
  group
    .sendRecv([...received.map((tensor) => ({ tensor, from: left })), ...sent.map((tensor) => ({ tensor, to: right }))])
    .wait();
  for (const [i, tensor] of received.entries()) await checkTensorValues(tensor, [left, i + 1], `message ${i}`);
  for (const tensor of [...sent, ...received]) tensor[Symbol.dispose]();
}

/** Pairs exchange in turn while the others do nothing of the kind; then all meet again. */
async function pairwiseExchange(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  using seen = makeTensor(group, [0], { dtype: "float32" });
  using token = makeTensor(group, [rank + 1], { dtype: "float32" });
  for (let turn = 0; turn + 1 < size; turn++) {
    if (rank === turn) group.sendRecv([{ tensor: token, to: turn + 1 }]).wait();
    if (rank === turn + 1) group.sendRecv([{ tensor: seen, from: turn }]).wait();
  }
  await checkTensorValues(seen, [rank], "the token from the left neighbor");
  group.allReduce(token).wait();
  await checkTensorValues(token, [(size * (size + 1)) / 2], "the sum of tokens");
}

async function countsTraffic(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  if (size === 1) return;
  using long = makeTensor(group, rankValues(rank, 100, "float32"), { dtype: "float32" });
  using short = makeTensor(group, rankValues(rank, 30, "bfloat16"), { dtype: "bfloat16" });
  using longIn = recvBuffer(group, 100, "float32");
  using shortIn = recvBuffer(group, 30, "bfloat16");
  const before = group.traffic();
  const transfers: Transfer[] = [
    { tensor: long, to: (rank + 1) % size },
    { tensor: longIn, from: (rank + size - 1) % size },
  ];
  if (rank === 0) transfers.push({ tensor: short, to: 1 });
  if (rank === 1) transfers.push({ tensor: shortIn, from: 0 });
  group.sendRecv(transfers).wait();
  await group.device.stream.synchronize();
  const after = group.traffic();
  const found = [
    after.bytesSent - before.bytesSent,
    after.bytesReceived - before.bytesReceived,
    after.messagesSent - before.messagesSent,
  ];
  const expected = [400 + (rank === 0 ? 60 : 0), 400 + (rank === 1 ? 60 : 0), rank === 0 ? 2 : 1];
  check(found.join() === expected.join(), `rank ${rank}: traffic ${found.join()}, expected ${expected.join()}`);
}
