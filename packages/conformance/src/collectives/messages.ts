import { allGatherObject, broadcastObject, type ProcessGroup, type Tensor, type Transfer } from "@mosaic/core";
import { type Case, check } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import {
  checkTensorValues,
  dtypes,
  groupRanks,
  makeReceiveBuffer,
  runOnRanks,
  makeTensor,
  rankValues,
} from "./tensors.ts";

/** Returns cases of sendRecv, of objects, and of the traffic that is counted. */
export function messageCases(makeWorld: MakeWorld, size: number): Case[] {
  const createGroupCase = (name: string, body: (group: ProcessGroup) => Promise<void>): Case => ({
    name: `${name}, ${size} ranks`,
    run: () => runOnRanks(makeWorld, size, (ctx) => body(ctx.world)),
  });
  return [
    ...dtypes.map((dtype) =>
      createGroupCase(`sendRecv around a ring, ${dtype}`, (group) => checkRingExchange(group, dtype)),
    ),
    createGroupCase("all-to-all sendRecv, with message sizes from 0", checkAllPairs),
    createGroupCase("sendRecv preserves message order between two ranks", checkMessageOrder),
    createGroupCase("sendRecv within a subset of the ranks", checkPairwiseExchange),
    createGroupCase("allGatherObject and broadcastObject, of lengths that differ between ranks", checkObjects),
    createGroupCase("traffic counts payloads", checkTraffic),
  ];
}

async function checkRingExchange(group: ProcessGroup, dtype: (typeof dtypes)[number]): Promise<void> {
  const { rank, size } = group;
  for (const length of [1, 7, 1024, 100_003]) {
    using out = makeTensor(group, rankValues(rank, length, dtype), { dtype });
    using receiveBuffer = makeReceiveBuffer(group, length, dtype);
    const leftRank = (rank + size - 1) % size;
    group
      .sendRecv([
        { tensor: receiveBuffer, from: leftRank },
        { tensor: out, to: (rank + 1) % size },
      ])
      .wait();
    await checkTensorValues(
      receiveBuffer,
      rankValues(leftRank, length, dtype),
      `${length} numbers from rank ${leftRank} on rank ${rank}`,
    );
  }
}

/** The message from a to b has a·size + b elements: every size is different, and one is 0. */
async function checkAllPairs(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  const messageLength = (sender: number, receiver: number) => sender * size + receiver;
  const sendBuffers = groupRanks(group).map((to) =>
    makeTensor(group, messageContent(rank, to, messageLength(rank, to)), { dtype: "float32" }),
  );
  const receiveBuffers = groupRanks(group).map((from) =>
    makeReceiveBuffer(group, messageLength(from, rank), "float32"),
  );
  const transfers: Transfer[] = [
    ...sendBuffers.map((tensor, to) => ({ tensor, to })),
    ...receiveBuffers.map((tensor, from) => ({ tensor, from })),
  ];
  group.sendRecv(transfers).wait();
  for (const [sender, tensor] of receiveBuffers.entries()) {
    await checkTensorValues(
      tensor,
      messageContent(sender, rank, messageLength(sender, rank)),
      `message from rank ${sender} on rank ${rank}`,
    );
  }
  for (const tensor of [...sendBuffers, ...receiveBuffers]) tensor[Symbol.dispose]();
}

function messageContent(sender: number, receiver: number, length: number): Float64Array {
  return Float64Array.from({ length }, (_, i) => 10_000 * sender + 100 * receiver + i);
}

async function checkMessageOrder(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  const rightRank = (rank + 1) % size;
  const leftRank = (rank + size - 1) % size;
  const sendBuffers = [1, 2, 3].map((i) => makeTensor(group, [rank, i], { dtype: "float32" }));
  const receiveBuffers: Tensor[] = sendBuffers.map(() => makeReceiveBuffer(group, 2, "float32"));
  group
    .sendRecv([
      ...receiveBuffers.map((tensor) => ({ tensor, from: leftRank })),
      ...sendBuffers.map((tensor) => ({ tensor, to: rightRank })),
    ])
    .wait();
  for (const [i, tensor] of receiveBuffers.entries())
    await checkTensorValues(tensor, [leftRank, i + 1], `message ${i}`);
  for (const tensor of [...sendBuffers, ...receiveBuffers]) tensor[Symbol.dispose]();
}

/** Each rank in turn sends to the next while other ranks post no sendRecv. Then all ranks call allReduce. */
async function checkPairwiseExchange(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  using tokenBuffer = makeTensor(group, [0], { dtype: "float32" });
  using token = makeTensor(group, [rank + 1], { dtype: "float32" });
  for (let hop = 0; hop + 1 < size; hop++) {
    if (rank === hop) group.sendRecv([{ tensor: token, to: hop + 1 }]).wait();
    if (rank === hop + 1) group.sendRecv([{ tensor: tokenBuffer, from: hop }]).wait();
  }
  await checkTensorValues(tokenBuffer, [rank], "the token from the left neighbor");
  group.allReduce(token).wait();
  await checkTensorValues(token, [(size * (size + 1)) / 2], "the sum of tokens");
}

/** The bytes of the texts have all values that UTF-8 contains, so that a device or transport that rounds is detected. */
async function checkObjects(group: ProcessGroup): Promise<void> {
  const codePoints = Array.from({ length: 3000 }, (_, i) => (i < 2048 ? i : 0x1_0000 + 997 * (i - 2048)));
  const text = String.fromCodePoint(...codePoints);
  const objectOf = (rank: number) => ({ rank, text: text.slice(0, rank % 2 === 0 ? 10 * rank : undefined) });
  const expected = JSON.stringify(groupRanks(group).map(objectOf));
  const objects = await allGatherObject(group, objectOf(group.rank));
  check(JSON.stringify(objects) === expected, `expected the objects of all ranks by rank, on rank ${group.rank}`);
  for (const root of groupRanks(group)) {
    const object = await broadcastObject(group, objectOf(group.rank), root);
    check(
      JSON.stringify(object) === JSON.stringify(objectOf(root)),
      `expected the object of rank ${root}, received ${JSON.stringify(object).slice(0, 60)} on rank ${group.rank}`,
    );
  }
}

async function checkTraffic(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  if (size === 1) return;
  using longMessage = makeTensor(group, rankValues(rank, 100, "float32"), { dtype: "float32" });
  using shortMessage = makeTensor(group, rankValues(rank, 30, "bfloat16"), { dtype: "bfloat16" });
  using longBuffer = makeReceiveBuffer(group, 100, "float32");
  using shortBuffer = makeReceiveBuffer(group, 30, "bfloat16");
  const trafficBefore = group.traffic();
  const transfers: Transfer[] = [
    { tensor: longMessage, to: (rank + 1) % size },
    { tensor: longBuffer, from: (rank + size - 1) % size },
  ];
  if (rank === 0) transfers.push({ tensor: shortMessage, to: 1 });
  if (rank === 1) transfers.push({ tensor: shortBuffer, from: 0 });
  group.sendRecv(transfers).wait();
  await group.device.stream.synchronize();
  const trafficAfter = group.traffic();
  const measuredTraffic = [
    trafficAfter.bytesSent - trafficBefore.bytesSent,
    trafficAfter.bytesReceived - trafficBefore.bytesReceived,
    trafficAfter.messagesSent - trafficBefore.messagesSent,
  ];
  const expected = [400 + (rank === 0 ? 60 : 0), 400 + (rank === 1 ? 60 : 0), rank === 0 ? 2 : 1];
  check(
    measuredTraffic.join() === expected.join(),
    `rank ${rank}: expected bytes sent, bytes received and messages sent of ${expected.join()}, received ${measuredTraffic.join()}`,
  );
}
