import type { ProcessGroup, Work } from "@mosaic/core";
import { type Case, check, checkEqual } from "../check.ts";
import type { MakeWorld } from "../world.ts";
import { checkTensorValues, groupRanks, recvBuffer, runOnRanks, makeTensor } from "./tensors.ts";

/** What is promised of the order between collectives and compute, and of memory; and groups within groups. */
export function orderCases(makeWorld: MakeWorld, size: number): Case[] {
  const on = (name: string, body: (group: ProcessGroup) => Promise<void>): Case => ({
    name: `${name}, ${size} ranks`,
    run: () => runOnRanks(makeWorld, size, (ctx) => body(ctx.world)),
  });
  return [
    on("a collective reads the results of earlier kernels", postWaitsForCompute),
    on("kernels enqueued after wait() read the received values", waitPrecedesCompute),
    on("a double-buffered pipeline", checkPipeline),
    on("tensors may be disposed once a collective is posted", disposeAfterPost),
    on("a collective completes without a call to wait()", closeWithoutWait),
    on("a collective increments the version counter of its output, not of its input", versionCounters),
    on("barrier", checkBarriers),
    on("split, and collectives on several groups between splits", checkSplits),
  ];
}

const LONG_KERNEL_COUNT = 4_000;

/** Long compute before the post: were it not waited for, old values would leave. */
async function postWaitsForCompute(group: ProcessGroup): Promise<void> {
  const { kernels } = group.device;
  using x = makeTensor(group, new Float64Array(LONG_KERNEL_COUNT), { dtype: "float32" });
  for (let i = 0; i < 40; i++) kernels.scalar("add", x, x, 1);
  kernels.scalar("mul", x, x, group.rank + 1);
  group.allReduce(x).wait();
  const sum = groupRanks(group).reduce((total, rank) => total + 40 * (rank + 1), 0);
  await checkTensorValues(x, new Float64Array(LONG_KERNEL_COUNT).fill(sum), "the sum");
}

/** Ranks post at different times; who is early must wait before it computes on what has not come. */
async function waitPrecedesCompute(group: ProcessGroup): Promise<void> {
  const { kernels } = group.device;
  const { rank, size } = group;
  using delay = makeTensor(group, new Float64Array(LONG_KERNEL_COUNT), { dtype: "float32" });
  for (let round = 0; round < size; round++) {
    using x = makeTensor(group, new Float64Array(LONG_KERNEL_COUNT).fill(rank + round), { dtype: "float32" });
    using arriving = recvBuffer(group, LONG_KERNEL_COUNT, "float32");
    if (rank === round) for (let i = 0; i < 50; i++) kernels.unary("exp", delay, delay);
    const left = (rank + size - 1) % size;
    group
      .sendRecv([
        { tensor: x, to: (rank + 1) % size },
        { tensor: arriving, from: left },
      ])
      .wait();
    kernels.scalar("add", arriving, arriving, 0.5);
    await checkTensorValues(
      arriving,
      new Float64Array(LONG_KERNEL_COUNT).fill(left + round + 0.5),
      `round ${round} on rank ${rank}`,
    );
    kernels.fill(delay, 0);
  }
}

/** A tensor saved for a backward, and overwritten by a collective before it, is an error: it is found by the version. */
async function versionCounters(group: ProcessGroup): Promise<void> {
  const { rank, size } = group;
  using sent = recvBuffer(group, size, "float32");
  using received = recvBuffer(group, size, "float32");
  const raises = (name: string, post: () => Work): void => {
    const before = [sent.storage.version, received.storage.version];
    post().wait();
    check(sent.storage.version === before[0], `${name}: the version counter of the input tensor was incremented`);
    check(
      received.storage.version > before[1]!,
      `${name}: the version counter of the output tensor was not incremented`,
    );
  };
  using share = received.slice(0, 0, 1);
  using mine = sent.slice(0, 0, 1);
  const [to, from] = [(rank + 1) % size, (rank + size - 1) % size];
  const exchange = [
    { tensor: sent, to },
    { tensor: received, from },
  ];
  raises("sendRecv", () => group.sendRecv(exchange));
  raises("allGather", () => group.allGather(received, mine));
  raises("reduceScatter", () => group.reduceScatter(share, sent));
  raises("allReduce", () => group.allReduce(received));
  raises("allToAll", () => group.allToAll(received, sent));
  const root = rank === 0 ? sent.storage.version : received.storage.version;
  group.broadcast(rank === 0 ? sent : received, 0).wait();
  const raised = (rank === 0 ? sent : received).storage.version - root;
  check(
    rank === 0 ? raised === 0 : raised > 0,
    `broadcast: the version counter was incremented by ${raised} on rank ${rank}`,
  );
  await checkTensorValues(mine, [Number.NaN], "the input");
}

/** As a ring does: the transfer into one buffer runs beside compute on the other, round and round. */
async function checkPipeline(group: ProcessGroup): Promise<void> {
  const { rank, size, device } = group;
  const buffers = [
    makeTensor(group, new Float64Array(LONG_KERNEL_COUNT).fill(rank), { dtype: "float32" }),
    recvBuffer(group, LONG_KERNEL_COUNT, "float32"),
  ];
  using sum = makeTensor(group, new Float64Array(LONG_KERNEL_COUNT), { dtype: "float32" });
  const rounds = 3 * size;
  for (let round = 0; round < rounds; round++) {
    const [held, next] = [buffers[round % 2]!, buffers[(round + 1) % 2]!];
    const left = (rank + size - 1) % size;
    const work = group.sendRecv([
      { tensor: held, to: (rank + 1) % size },
      { tensor: next, from: left },
    ]);
    device.kernels.binary("add", sum, sum, held);
    work.wait();
  }
  await checkTensorValues(
    sum,
    new Float64Array(LONG_KERNEL_COUNT).fill((3 * size * (size - 1)) / 2),
    "three times the sum of all ranks",
  );
  for (const buffer of buffers) buffer[Symbol.dispose]();
}

async function disposeAfterPost(group: ProcessGroup): Promise<void> {
  const works: Work[] = [];
  const results = [];
  for (let i = 0; i < 10; i++) {
    using x = makeTensor(group, new Float64Array(LONG_KERNEL_COUNT).fill(group.rank + i), { dtype: "float32" });
    const out = recvBuffer(group, LONG_KERNEL_COUNT * group.size, "float32");
    works.push(group.allGather(out, x));
    results.push(out);
  }
  // What was disposed may be handed out again, but not before the collective is done with it.
  using other = recvBuffer(group, LONG_KERNEL_COUNT, "float32");
  for (const work of works) work.wait();
  for (const [i, out] of results.entries()) {
    const expected = groupRanks(group).flatMap((rank) => new Array<number>(LONG_KERNEL_COUNT).fill(rank + i));
    checkEqual(await out.read(), expected, `gathered ${i}`);
    out[Symbol.dispose]();
  }
  await checkTensorValues(other, new Float64Array(LONG_KERNEL_COUNT).fill(Number.NaN), "memory of another tensor");
}

async function closeWithoutWait(group: ProcessGroup): Promise<void> {
  using x = makeTensor(group, [group.rank], { dtype: "float32" });
  group.allReduce(x);
  using y = makeTensor(group, [1], { dtype: "float32" });
  group.allReduce(y).wait(); // collectives of one rank run in order: the one before is done as well
  await checkTensorValues(y, [group.size], "the second");
  await checkTensorValues(x, [(group.size * (group.size - 1)) / 2], "the first");
}

async function checkBarriers(group: ProcessGroup): Promise<void> {
  const before = group.traffic().bytesSent;
  for (let i = 0; i < 20; i++) group.barrier().wait();
  await group.device.stream.synchronize();
  const bytesSent = group.traffic().bytesSent - before;
  check(bytesSent === 0, `expected barriers without payload, received a count of ${bytesSent} bytes sent`);
}

/** Even and odd ranks, each pair of halves again; ranks in a part keep their order. */
async function checkSplits(group: ProcessGroup): Promise<void> {
  const parity = group.rank % 2;
  const part = await group.split(parity, "parity");
  const members = groupRanks(group).filter((rank) => rank % 2 === parity);
  checkEqual(
    part.ranks,
    members.map((rank) => group.ranks[rank]!),
    "members",
  );
  check(part.rank === members.indexOf(group.rank) && part.size === members.length, "rank in the split group");
  const alone = await part.split(part.rank, "alone");
  check(alone.size === 1, `size of a split group of one rank: ${alone.size}`);

  using inPart = makeTensor(group, [group.rank], { dtype: "float32" });
  using inAll = makeTensor(group, [group.rank], { dtype: "float32" });
  using own = makeTensor(group, [group.rank], { dtype: "float32" });
  const works = [part.allReduce(inPart), group.allReduce(inAll), alone.allReduce(own), part.allReduce(inPart)];
  for (const work of works) work.wait();
  const sum = (ranks: readonly number[]) => ranks.reduce((a, b) => a + b, 0);
  await checkTensorValues(inPart, [sum(members) * members.length], "the sum of the split group, twice");
  await checkTensorValues(inAll, [sum(groupRanks(group))], "the sum of the world");
  await checkTensorValues(own, [group.rank], "the sum of the single-rank group");
}
