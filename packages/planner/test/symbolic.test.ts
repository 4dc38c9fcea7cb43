import { allGatherObject, broadcastObject, type ProcessGroup, runOnAllRanks, zeros } from "@mosaic/core";
import { expect, test } from "vitest";
import { type AttentionRecord, count, record, symbolicWorld } from "../src/index.ts";
import { faultyRing } from "./fault-injection.ts";

test("every rank has the groups of its mesh axes", () => {
  const { contexts } = symbolicWorld({ mesh: { node: 3, gpu: 2 } });
  expect(contexts.map(({ mesh }) => mesh.group("gpu").ranks)).toEqual([
    [0, 1],
    [0, 1],
    [2, 3],
    [2, 3],
    [4, 5],
    [4, 5],
  ]);
  expect(contexts[3]!.mesh.group("node").ranks).toEqual([1, 3, 5]);
  expect(contexts[3]!.mesh.group("node").rank).toBe(1);
  expect(contexts[3]!.mesh.coordinate).toEqual({ node: 1, gpu: 1 });
  expect(() => contexts[0]!.mesh.group("sp")).toThrow("one of the axes node, gpu");
});

test("symbolic tensors count as allocated memory and cannot be read", async () => {
  const [ctx] = symbolicWorld({ mesh: { sp: 1 } }).contexts;
  const x = zeros(ctx!, [1_000_000, 1_000_000]);
  expect(ctx!.device.memory()).toMatchObject({ allocated: 4e12, peak: 4e12 });
  await expect(x.read()).rejects.toThrow("a device that computes");
  x.dispose();
  expect(ctx!.device.memory()).toMatchObject({ allocated: 0, peak: 4e12 });
});

test("JSON of a context is that of a context of init", () => {
  const { contexts } = symbolicWorld({ mesh: { sp: 2 } });
  expect(JSON.parse(JSON.stringify(contexts[1]))).toEqual({
    rank: 1,
    size: 2,
    mesh: { sp: 2 },
    coordinate: { sp: 1 },
    device: "symbolic:1",
    seed: 0,
    backends: ["local"],
  });
});

test("objects are exchanged on one symbolic rank, and cannot be received from other symbolic ranks", async () => {
  const [ctx] = symbolicWorld({ mesh: { sp: 1 } }).contexts;
  const numEvents = ctx!.device.record.events;
  expect(await allGatherObject(ctx!, { a: 1 })).toEqual([{ a: 1 }]);
  expect(await broadcastObject(ctx!, "x")).toBe("x");
  expect(await runOnAllRanks(ctx!.world, "test", () => 1)).toEqual([1]);
  expect(ctx!.device.record.events).toBe(numEvents);
  const { contexts } = symbolicWorld({ mesh: { sp: 2 } });
  for (const each of contexts) {
    await expect(broadcastObject(each, "x")).rejects.toThrow("a device that computes");
    expect(each.device.memory().allocated).toBe(0);
  }
});

test("freed memory is reused under the same number, and a disposed tensor is rejected", () => {
  const [ctx] = symbolicWorld({ mesh: { sp: 1 } }).contexts;
  const { kernels, record: tape } = ctx!.device;
  const first = zeros(ctx!, [4]);
  const storages = tape.storageSizes.length;
  first.dispose();
  using second = zeros(ctx!, [2, 2]);
  using bfloat16Tensor = zeros(ctx!, [4], { dtype: "bfloat16" });
  expect(second.storage).toBe(first.storage);
  expect(bfloat16Tensor.storage).not.toBe(first.storage);
  expect(tape.storageSizes.length).toBe(storages + 1);
  expect(() => kernels.fill(first, 1)).toThrow("a disposed tensor of shape [4]");
});

test("memory that a collective uses is freed only after wait()", () => {
  const [ctx] = symbolicWorld({ mesh: { sp: 2 } }).contexts;
  const x = zeros(ctx!, [4]);
  const work = ctx!.world.allReduce(x);
  x.dispose();
  expect(ctx!.device.memory().allocated).toBe(16);
  work.wait();
  expect(ctx!.device.memory().allocated).toBe(0);
});

test("a group splits by color when all of its ranks have called split", async () => {
  const { contexts } = symbolicWorld({ mesh: { sp: 4 } });
  const splitGroups = await Promise.all(contexts.map(({ world, rank }) => world.split(rank % 2, "half")));
  expect(splitGroups.map(({ ranks }: ProcessGroup) => ranks)).toEqual([
    [0, 2],
    [1, 3],
    [0, 2],
    [1, 3],
  ]);
  expect(splitGroups[3]!.rank).toBe(1);
  expect(splitGroups[0]!.name).toBe("half");
});

test("a tape records operations in the order in which they are enqueued", () => {
  const attentionRecord: AttentionRecord = record({
    backend: faultyRing({}),
    mesh: { sp: 2 },
    tokens: 4,
    numHeads: 1,
    headDim: 2,
  });
  const ops: string[] = [];
  const event = attentionRecord.ranks[0]!.tape.read();
  while (event.next()) ops.push(event.op === "mark" ? attentionRecord.interned.strings[event.arg(0)]! : event.op);
  const forward = ops.slice(ops.indexOf("forward") + 1, ops.indexOf("backward"));
  expect(forward.filter((op) => op !== "empty" && op !== "free")).toEqual([
    "fill",
    "fill",
    "sendRecv",
    "attend",
    "wait",
    "attend",
    "copy",
  ]);
  expect(ops.filter((op) => op === "empty").length).toBe(ops.filter((op) => op === "free").length);
});

test("collectives are recorded and counted as the messages of their direct forms", () => {
  const backendFields = { name: "gathering", axes: [] as string[] };
  const attentionRecord = record({
    backend: {
      ...backendFields,
      attend(ctx, { q }) {
        using gathered = ctx.device.empty([2, ...q.shape], q.dtype);
        ctx.world.allGather(gathered, q).wait();
        ctx.world.barrier().wait();
      },
      attendBackward(ctx, _call, { dq }) {
        ctx.world.allReduce(dq).wait();
      },
    },
    mesh: { dp: 2 },
    tokens: 4,
    numHeads: 1,
    headDim: 4,
  });
  const [first] = count(attentionRecord).ranks;
  expect(first!.forward.sent).toEqual({ bytes: 32, elements: 16, messages: 1 });
  expect(first!.backward.sent).toEqual({ bytes: 64, elements: 16, messages: 2 });
});
