import { type Context, cpu, fromArray, type Tensor, world } from "@mosaic/attention";
import { OptionError, type ProcessGroup, type Work } from "@mosaic/core";
import { expect, test } from "vitest";

const openWorld = (): Promise<readonly Context[]> => world(2, { device: () => cpu({ threads: 1 }), timeout: 20 });
const closeAll = (contexts: readonly Context[]) => Promise.all(contexts.map((ctx) => ctx.close()));
const values = async (x: Tensor): Promise<number[]> => Array.from(await x.read());

/** Creates [1, 2, …] + the rank on each rank. */
const createTensors = (contexts: readonly Context[], shape: readonly number[]): Tensor[] =>
  contexts.map((ctx) =>
    fromArray(
      ctx,
      Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => i + 1 + ctx.rank),
      shape,
    ),
  );

const postAll = (contexts: readonly Context[], post: (group: ProcessGroup, rank: number) => Work): Work[] =>
  contexts.map((ctx) => post(ctx.world, ctx.rank));
const waitAll = (works: readonly Work[]): void => works.forEach((work) => work.wait());

const isWriting = /expected a tensor that no collective is writing, received .*; call wait\(\) of its Work first/;
const isReading = /expected an output that no collective is reading, received .*; call wait\(\) of its Work first/;

test("a tensor that a collective writes cannot be used before wait()", async () => {
  const contexts = await openWorld();
  try {
    const xs = createTensors(contexts, [2, 3]);
    postAll(contexts, (group) => group.barrier()).forEach((work) => work.wait());
    const works = postAll(contexts, (group, rank) => group.allReduce(xs[rank]!, "sum", { label: "example" }));
    const [x] = xs;
    expect(() => x!.mul(1)).toThrow(
      new OptionError(
        "mul: expected a tensor that no collective is writing, received [2,3], which allReduce #2 (world) of example is writing; call wait() of its Work first",
      ),
    );
    await expect(x!.read()).rejects.toThrow(isWriting);
    expect(() => contexts[0]!.device.write(x!, [1, 2, 3, 4, 5, 6])).toThrow(isWriting);
    expect(() => contexts[0]!.device.kernels.fill(x!, 0)).toThrow(isWriting);
    works[0]!.wait();
    expect(await values(x!.mul(1))).toEqual([3, 5, 7, 9, 11, 13]);
    await expect(xs[1]!.read(), "rank 1 has not waited").rejects.toThrow(isWriting);
    works[1]!.wait();
    expect(await values(xs[1]!)).toEqual([3, 5, 7, 9, 11, 13]);
  } finally {
    await closeAll(contexts);
  }
});

test("other elements of the same memory can be used before wait()", async () => {
  const contexts = await openWorld();
  try {
    const xs = createTensors(contexts, [4, 2]);
    const works = postAll(contexts, (group, rank) => group.allReduce(xs[rank]!.slice(0, 1, 2)));
    const [x] = xs;
    expect(await values(x!.slice(0, 0, 1))).toEqual([1, 2]);
    expect(await values(x!.slice(0, 2, 4))).toEqual([5, 6, 7, 8]);
    // Rows 0 and 2, on both sides of the row that is written.
    using otherRows = x!.view({ shape: [2, 2], strides: [4, 1] });
    expect(await values(otherRows.mul(2))).toEqual([2, 4, 10, 12]);
    expect(() => x!.slice(0, 0, 2).mul(2)).toThrow(isWriting);
    expect(() => x!.slice(1, 0, 1).mul(2), "a column").toThrow(isWriting);
    waitAll(works);
    expect(await values(x!)).toEqual([1, 2, 7, 9, 5, 6, 7, 8]);
  } finally {
    await closeAll(contexts);
  }
});

test("collectives may be posted on a tensor in flight, and the wait() of the last one suffices", async () => {
  const contexts = await openWorld();
  try {
    const xs = createTensors(contexts, [1]);
    const firstWorks = postAll(contexts, (group, rank) => group.allReduce(xs[rank]!));
    const lastWorks = postAll(contexts, (group, rank) => group.allReduce(xs[rank]!));
    firstWorks[0]!.wait();
    expect(() => xs[0]!.mul(1), "waited only for the first").toThrow(/allReduce #2 \(world\) is writing/);
    waitAll(lastWorks);
    expect(await values(xs[0]!.mul(1))).toEqual([6]);
    expect(await values(xs[1]!.mul(1))).toEqual([6]);
  } finally {
    await closeAll(contexts);
  }
});

test("operations of another group are ordered too, and an awaited split or trace is a wait", async () => {
  const contexts = await openWorld();
  try {
    const xs = createTensors(contexts, [1]);
    postAll(contexts, (group, rank) => group.allReduce(xs[rank]!));
    const groups = await Promise.all(contexts.map((ctx) => ctx.world.split(0, "all")));
    expect(await values(xs[0]!.mul(1))).toEqual([3]);
    postAll(contexts, (group, rank) => group.allReduce(xs[rank]!));
    expect(() => xs[0]!.mul(1), "a split counts as an operation").toThrow(/allReduce #3 \(world\) is writing/);
    groups.forEach((group) => group.barrier().wait());
    expect(await values(xs[0]!.mul(1))).toEqual([6]);
    contexts.forEach((ctx) => ctx.world.startTrace());
    postAll(contexts, (group, rank) => group.allReduce(xs[rank]!));
    await Promise.all(contexts.map((ctx) => ctx.world.stopTrace()));
    expect(await values(xs[0]!.mul(1))).toEqual([12]);
  } finally {
    await closeAll(contexts);
  }
});

test("before wait(), what is sent can be read but not overwritten, and what is received can be neither", async () => {
  const contexts = await openWorld();
  try {
    const [sent, received] = [createTensors(contexts, [2]), createTensors(contexts, [2])];
    const works = postAll(contexts, (group, rank) =>
      group.sendRecv([
        { tensor: sent[rank]!, to: 1 - rank },
        { tensor: received[rank]!, from: 1 - rank },
      ]),
    );
    expect(await values(sent[0]!.mul(2))).toEqual([2, 4]);
    expect(() => contexts[0]!.device.kernels.fill(sent[0]!, 0)).toThrow(isReading);
    expect(() => contexts[0]!.device.write(sent[0]!, [0, 0])).toThrow(isReading);
    expect(() => received[0]!.mul(2)).toThrow(isWriting);
    waitAll(works);
    contexts[0]!.device.kernels.fill(sent[0]!, 0);
    expect(await values(received[0]!.mul(2))).toEqual([4, 6]);
    expect(await values(received[1]!)).toEqual([1, 2]);
  } finally {
    await closeAll(contexts);
  }
});

test("the root of a broadcast, and the shard of an all-gather in place, can be read before wait()", async () => {
  const contexts = await openWorld();
  try {
    const xs = createTensors(contexts, [2]);
    let works = postAll(contexts, (group, rank) => group.broadcast(xs[rank]!, 0));
    expect(await values(xs[0]!)).toEqual([1, 2]);
    await expect(xs[1]!.read()).rejects.toThrow(isWriting);
    waitAll(works);
    const shards = contexts.map((ctx) => xs[ctx.rank]!.slice(0, ctx.rank, ctx.rank + 1));
    contexts[1]!.device.write(shards[1]!, [8]);
    works = postAll(contexts, (group, rank) => group.allGather(xs[rank]!, shards[rank]!));
    expect(await values(shards[1]!)).toEqual([8]);
    expect(() => contexts[1]!.device.write(shards[1]!, [9])).toThrow(isReading);
    await expect(xs[1]!.slice(0, 0, 1).read()).rejects.toThrow(isWriting);
    waitAll(works);
    expect(await Promise.all(xs.map(values))).toEqual([
      [1, 8],
      [1, 8],
    ]);
  } finally {
    await closeAll(contexts);
  }
});

test("a group of one rank reduces without effect, so no wait() is necessary", async () => {
  const contexts = await openWorld();
  try {
    const xs = createTensors(contexts, [2]);
    const groups = await Promise.all(contexts.map((ctx) => ctx.world.split(ctx.rank)));
    groups.forEach((group, rank) => {
      group.allReduce(xs[rank]!);
      group.broadcast(xs[rank]!, 0);
    });
    expect(await values(xs[1]!.mul(1))).toEqual([2, 3]);
  } finally {
    await closeAll(contexts);
  }
});

test("after a groupCast was posted, rows that it has packed or does not send may be overwritten", async () => {
  const contexts = await openWorld();
  try {
    // Every rank sends its row 0 to the other rank.
    const plan = {
      size: 2,
      ranges: (sender: number, receiver: number) => (sender === receiver ? [] : [{ start: 0, length: 1 }]),
    };
    const [input, out] = [createTensors(contexts, [2, 2]), createTensors(contexts, [1, 2])];
    const [planes, receivedPlanes] = [createTensors(contexts, [2, 2, 2]), createTensors(contexts, [2, 1, 2])];
    const works = [
      ...postAll(contexts, (group, rank) => group.groupCast([out[rank]!], [input[rank]!], plan)),
      ...postAll(contexts, (group, rank) => group.groupCast([receivedPlanes[rank]!], [planes[rank]!], plan)),
    ];
    const { kernels } = contexts[0]!.device;
    kernels.fill(input[0]!.slice(0, 1, 2), 0);
    expect(() => kernels.fill(input[0]!.slice(0, 0, 1), 0)).toThrow(isReading);
    expect(() => out[0]!.mul(1)).toThrow(/groupCast #1 \(world\) is writing/);
    kernels.fill(planes[0]!, 0);
    waitAll(works);
    kernels.fill(input[0]!, 0);
    expect(await values(out[1]!.mul(1))).toEqual([1, 2]);
    expect(await values(receivedPlanes[1]!.mul(1))).toEqual([1, 2, 5, 6]);
  } finally {
    await closeAll(contexts);
  }
});
