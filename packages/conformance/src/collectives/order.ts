import type { ProcessGroup, Work } from "@mosaic/core";
import { type Case, check, checkEqual } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import { checkTensorValues, groupRanks, makeReceiveBuffer, runOnRanks, makeTensor } from "./tensors.ts";

/** Returns cases of the guaranteed order between collectives and compute, of memory, and of groups within groups. */
export function orderCases(makeWorld: MakeWorld, size: number): Case[] {
  const createGroupCase = (name: string, body: (group: ProcessGroup) => Promise<void>): Case => ({
    name: `${name}, ${size} ranks`,
    run: () => runOnRanks(makeWorld, size, (ctx) => body(ctx.world)),
  });
  return [
    createGroupCase("a collective reads the results of earlier kernels", checkPostWaitsForCompute),
    createGroupCase("kernels enqueued after wait() read the received values", checkWaitPrecedesCompute),
    createGroupCase("a double-buffered pipeline", checkPipeline),
    createGroupCase("tensors may be disposed once a collective is posted", checkDisposeAfterPost),
    createGroupCase("a collective completes without a call to wait()", checkCompletionWithoutWait),
    createGroupCase(
      "a collective increments the version counter of its output, not of its input",
      checkVersionCounters,
    ),
    createGroupCase("barrier", checkBarriers),
    createGroupCase("split, and collectives on several groups between splits", checkSplits),
  ];
}

const LONG_KERNEL_ELEMENTS = 4_000;

/** Enqueues long compute before the post. A collective that did not wait for it would send old values. */
async function checkPostWaitsForCompute(group: ProcessGroup): Promise<void> {
  const { kernels } = group.device;
  using x = makeTensor(group, new Float64Array(LONG_KERNEL_ELEMENTS), { dtype: "float32" });
  for (let i = 0; i < 40; i++) kernels.scalar("add", x, x, 1);
  kernels.scalar("mul", x, x, group.rank + 1);
  group.allReduce(x).wait();
  const sum = groupRanks(group).reduce((total, rank) => total + 40 * (rank + 1), 0);
  await checkTensorValues(x, new Float64Array(LONG_KERNEL_ELEMENTS).fill(sum), "the sum");
}

/** Ranks post at different times. A rank that is early must not compute on values that have not arrived. */
async function checkWaitPrecedesCompute(group: ProcessGroup): Promise<void> {
  const { kernels } = group.device;
  const { rank, size } = group;
  using delay = makeTensor(group, new Float64Array(LONG_KERNEL_ELEMENTS), { dtype: "float32" });
  for (let round = 0; round < size; round++) {
    using x = makeTensor(group, new Float64Array(LONG_KERNEL_ELEMENTS).fill(rank + round), { dtype: "float32" });
    using receiveBuffer = makeReceiveBuffer(group, LONG_KERNEL_ELEMENTS, "float32");
    if (rank === round) for (let i = 0; i < 50; i++) kernels.unary("exp", delay, delay);
    const leftRank = (rank + size - 1) % size;
    group
      .sendRecv([
        { tensor: x, to: (rank + 1) % size },
        { tensor: receiveBuffer, from: leftRank },
      ])
      .wait();
    kernels.scalar("add", receiveBuffer, receiveBuffer, 0.5);
    await checkTensorValues(
      receiveBuffer,
      new Float64Array(LONG_KERNEL_ELEMENTS).fill(leftRank + round + 0.5),
      `round ${round} on rank ${rank}`,
    );
    kernels.fill(delay, 0);
  }
}

/**
 * Checks the version counters. They detect the error that a collective overwrites a tensor saved for a backward before
 * that backward.
 */
async function checkVersionCounters(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  using sendBuffer = makeReceiveBuffer(group, size, "float32");
  using receiveBuffer = makeReceiveBuffer(group, size, "float32");
  const checkVersionIncrease = (name: string, post: () => Work): void => {
    const versionsBefore = [sendBuffer.storage.version, receiveBuffer.storage.version];
    post().wait();
    check(
      sendBuffer.storage.version === versionsBefore[0],
      `${name}: expected version ${versionsBefore[0]} of the input tensor, received ${sendBuffer.storage.version}`,
    );
    check(
      receiveBuffer.storage.version > versionsBefore[1]!,
      `${name}: expected a version > ${versionsBefore[1]} of the output tensor, received ${receiveBuffer.storage.version}`,
    );
  };
  using receiveSlice = receiveBuffer.slice(0, 0, 1);
  using sendSlice = sendBuffer.slice(0, 0, 1);
  const [rightRank, leftRank] = [(rank + 1) % size, (rank + size - 1) % size];
  const exchange = [
    { tensor: sendBuffer, to: rightRank },
    { tensor: receiveBuffer, from: leftRank },
  ];
  checkVersionIncrease("sendRecv", () => group.sendRecv(exchange));
  checkVersionIncrease("allGather", () => group.allGather(receiveBuffer, sendSlice));
  checkVersionIncrease("reduceScatter", () => group.reduceScatter(receiveSlice, sendBuffer));
  checkVersionIncrease("allReduce", () => group.allReduce(receiveBuffer));
  checkVersionIncrease("allToAll", () => group.allToAll(receiveBuffer, sendBuffer));
  const versionBefore = rank === 0 ? sendBuffer.storage.version : receiveBuffer.storage.version;
  group.broadcast(rank === 0 ? sendBuffer : receiveBuffer, 0).wait();
  const versionIncrease = (rank === 0 ? sendBuffer : receiveBuffer).storage.version - versionBefore;
  check(
    rank === 0 ? versionIncrease === 0 : versionIncrease > 0,
    `broadcast, rank ${rank}: expected a version counter increment ${rank === 0 ? "of 0" : "> 0"}, received ${versionIncrease}`,
  );
  await checkTensorValues(sendSlice, [Number.NaN], "the input");
}

/** Overlaps the transfer into one buffer with compute on the other, alternately, as a ring does. */
async function checkPipeline(group: ProcessGroup): Promise<void> {
  const { rank, size, device } = group;
  const buffers = [
    makeTensor(group, new Float64Array(LONG_KERNEL_ELEMENTS).fill(rank), { dtype: "float32" }),
    makeReceiveBuffer(group, LONG_KERNEL_ELEMENTS, "float32"),
  ];
  using sum = makeTensor(group, new Float64Array(LONG_KERNEL_ELEMENTS), { dtype: "float32" });
  const numRounds = 3 * size;
  for (let round = 0; round < numRounds; round++) {
    const [currentBuffer, nextBuffer] = [buffers[round % 2]!, buffers[(round + 1) % 2]!];
    const leftRank = (rank + size - 1) % size;
    const work = group.sendRecv([
      { tensor: currentBuffer, to: (rank + 1) % size },
      { tensor: nextBuffer, from: leftRank },
    ]);
    device.kernels.binary("add", sum, sum, currentBuffer);
    work.wait();
  }
  await checkTensorValues(
    sum,
    new Float64Array(LONG_KERNEL_ELEMENTS).fill((3 * size * (size - 1)) / 2),
    "three times the sum of all ranks",
  );
  for (const buffer of buffers) buffer[Symbol.dispose]();
}

async function checkDisposeAfterPost(group: ProcessGroup): Promise<void> {
  const works: Work[] = [];
  const results = [];
  for (let i = 0; i < 10; i++) {
    using x = makeTensor(group, new Float64Array(LONG_KERNEL_ELEMENTS).fill(group.rank + i), { dtype: "float32" });
    const out = makeReceiveBuffer(group, LONG_KERNEL_ELEMENTS * group.size, "float32");
    works.push(group.allGather(out, x));
    results.push(out);
  }
  // Disposed memory may be reused, but not before the collective has finished with it.
  using reusedBuffer = makeReceiveBuffer(group, LONG_KERNEL_ELEMENTS, "float32");
  for (const work of works) work.wait();
  for (const [i, out] of results.entries()) {
    const expected = groupRanks(group).flatMap((rank) => new Array<number>(LONG_KERNEL_ELEMENTS).fill(rank + i));
    checkEqual(await out.read(), expected, `gathered ${i}`);
    out[Symbol.dispose]();
  }
  await checkTensorValues(
    reusedBuffer,
    new Float64Array(LONG_KERNEL_ELEMENTS).fill(Number.NaN),
    "memory of another tensor",
  );
}

async function checkCompletionWithoutWait(group: ProcessGroup): Promise<void> {
  using x = makeTensor(group, [group.rank], { dtype: "float32" });
  group.allReduce(x);
  using y = makeTensor(group, [1], { dtype: "float32" });
  group.allReduce(y).wait(); // Collectives of one rank run in order, so the first is complete as well.
  await checkTensorValues(y, [group.size], "the second");
  await checkTensorValues(x, [(group.size * (group.size - 1)) / 2], "the first");
}

async function checkBarriers(group: ProcessGroup): Promise<void> {
  const bytesSentBefore = group.traffic().bytesSent;
  for (let i = 0; i < 20; i++) group.barrier().wait();
  await group.device.stream.synchronize();
  const bytesSent = group.traffic().bytesSent - bytesSentBefore;
  check(bytesSent === 0, `expected 0 bytes sent by 20 barriers, received ${bytesSent}`);
}

/** Splits into even and odd ranks, and each part into groups of one rank. Ranks of a part keep their order. */
async function checkSplits(group: ProcessGroup): Promise<void> {
  const parity = group.rank % 2;
  const halfGroup = await group.split(parity, "parity");
  const members = groupRanks(group).filter((rank) => rank % 2 === parity);
  checkEqual(
    halfGroup.ranks,
    members.map((rank) => group.ranks[rank]!),
    "members",
  );
  const expectedRank = members.indexOf(group.rank);
  check(
    halfGroup.rank === expectedRank && halfGroup.size === members.length,
    `expected rank ${expectedRank} of ${members.length} in the split group, received ${halfGroup.rank} of ${halfGroup.size}`,
  );
  const selfGroup = await halfGroup.split(halfGroup.rank, "alone");
  check(selfGroup.size === 1, `expected a split group of 1 rank, received ${selfGroup.size}`);

  using halfTensor = makeTensor(group, [group.rank], { dtype: "float32" });
  using worldTensor = makeTensor(group, [group.rank], { dtype: "float32" });
  using selfTensor = makeTensor(group, [group.rank], { dtype: "float32" });
  const works = [
    halfGroup.allReduce(halfTensor),
    group.allReduce(worldTensor),
    selfGroup.allReduce(selfTensor),
    halfGroup.allReduce(halfTensor),
  ];
  for (const work of works) work.wait();
  const sumRanks = (ranks: readonly number[]) => ranks.reduce((a, b) => a + b, 0);
  await checkTensorValues(halfTensor, [sumRanks(members) * members.length], "the sum of the split group, twice");
  await checkTensorValues(worldTensor, [sumRanks(groupRanks(group))], "the sum of the world");
  await checkTensorValues(selfTensor, [group.rank], "the sum of the single-rank group");
}
