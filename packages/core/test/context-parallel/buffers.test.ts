import { afterEach, beforeEach, expect, test } from "vitest";
import { ChunkBuffers, recvTransfers, sendTransfers } from "../../src/context-parallel/buffers.ts";
import type { Context } from "../../src/context.ts";
import { fromArray } from "../../src/creation.ts";
import { init } from "../../src/init.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice, values } from "../reference/index.ts";

let ctx: Context;
beforeEach(async () => {
  ctx = await init({ device: new ReferenceDevice() });
});
afterEach(() => ctx.close());

/** Creates K and V [2,3,rows,4] as views of [B,S,H,D], as modules do, and contiguous copies of them. */
function createKv(rows: number): { strided: Tensor[]; dense: Tensor[] } {
  const createTensor = (seed: number) =>
    fromArray(ctx, values(2 * rows * 3 * 4, seed), [2, rows, 3, 4]).permute([0, 2, 1, 3]);
  const strided = [createTensor(1), createTensor(2)];
  return { strided, dense: strided.map((x) => x.contiguous()) };
}

const allocatedBytes = async () => {
  await ctx.device.stream.synchronize();
  return ctx.device.memory().allocated;
};

test("tensors and messages of a chunk have the same values in either memory order", async () => {
  const { strided } = createKv(5);
  for (const order of ["bhsd", "sbhd"] as const) {
    using buffers = new ChunkBuffers({ device: ctx.device, order });
    const { tensors, wire } = buffers.copy(strided);
    for (const [i, tensor] of tensors.entries()) {
      expect(tensor.shape).toEqual([2, 3, 5, 4]);
      expect(wire[i]!.shape).toEqual(order === "bhsd" ? [2, 3, 5, 4] : [5, 2, 3, 4]);
      expect(wire[i]!.isContiguous).toBe(true);
      expect(await tensor.read()).toEqual(await strided[i]!.read());
      using bhsdView = order === "bhsd" ? wire[i]!.detach() : wire[i]!.permute([1, 2, 0, 3]);
      expect(await bhsdView.read()).toEqual(await strided[i]!.read());
    }
  }
});

test("a chunk holds [B,H,S] statistics beside rows, each with its own dtype", () => {
  using buffers = new ChunkBuffers({ device: ctx.device, order: "sbhd" });
  const chunkSpec = [
    { shape: [2, 3, 9, 4], dtype: "bfloat16" },
    { shape: [2, 3, 9], dtype: "float32" },
  ] as const;
  const { tensors, wire } = buffers.empty(chunkSpec, 5);
  expect(tensors.map(({ shape, dtype }) => [shape, dtype])).toEqual([
    [[2, 3, 5, 4], "bfloat16"],
    [[2, 3, 5], "float32"],
  ]);
  expect(wire.map(({ shape }) => shape)).toEqual([
    [5, 2, 3, 4],
    [5, 2, 3],
  ]);
});

test("a slot reuses one allocation for chunks of any length up to slotRows", () => {
  using buffers = new ChunkBuffers({ device: ctx.device, slotRows: 7 });
  const { dense } = createKv(5);
  const firstSlot = buffers.slot("even", dense, 5);
  expect(buffers.slot("even", dense, 5)).toBe(firstSlot);
  for (const rows of [7, 0, 2]) {
    const reusedSlot = buffers.slot("even", dense, rows);
    expect(reusedSlot.wire.map(({ storage }) => storage)).toEqual(firstSlot.wire.map(({ storage }) => storage));
    expect(reusedSlot.wire.map(({ shape, isContiguous }) => [shape[2], isContiguous])).toEqual([
      [rows, true],
      [rows, true],
    ]);
  }
  expect(buffers.slot("odd", dense, 5).wire[0]!.storage).not.toBe(firstSlot.wire[0]!.storage);
  expect(() => buffers.slot("even", dense, 8)).toThrow('slot "even": expected at most 7 rows, received 8');
});

test("memory is allocated on first use and freed on dispose", async () => {
  const { dense } = createKv(5);
  const allocatedBefore = await allocatedBytes();
  const buffers = new ChunkBuffers({ device: ctx.device, slotRows: 10 });
  expect(await allocatedBytes()).toBe(allocatedBefore);
  buffers.slot("even", dense, 1);
  expect((await allocatedBytes()) - allocatedBefore).toBe(2 * (2 * 3 * 10 * 4) * 4);
  buffers.slot("even", dense, 10);
  buffers.contiguous(dense);
  expect((await allocatedBytes()) - allocatedBefore).toBe(2 * (2 * 3 * 10 * 4) * 4);
  buffers.zeros(dense, 1000);
  expect((await allocatedBytes()) - allocatedBefore).toBe(2 * (2 * 3 * 10 * 4) * 4 + 2 * 4);
  buffers.takeOwnership(dense[0]!.contiguous());
  buffers[Symbol.dispose]();
  expect(await allocatedBytes()).toBe(allocatedBefore);
  expect(dense[0]!.isDisposed).toBe(false);
});

test("zeros returns a zero-filled chunk of the requested length", async () => {
  using buffers = new ChunkBuffers({ device: ctx.device });
  const { tensors } = buffers.zeros(createKv(5).dense, 3);
  for (const tensor of tensors) {
    expect(tensor.shape).toEqual([2, 3, 3, 4]);
    expect((await tensor.read()).every((value) => value === 0)).toBe(true);
  }
});

test("contiguous reuses tensors that are contiguous in the message order, and copies others", async () => {
  const { strided, dense } = createKv(5);
  using heads = new ChunkBuffers({ device: ctx.device });
  const [keptTensor, copiedTensor] = [dense[0]!, strided[1]!];
  const { tensors, wire } = heads.contiguous([keptTensor, copiedTensor]);
  expect(wire[0]!.storage).toBe(keptTensor.storage);
  expect(wire[1]!.storage).not.toBe(copiedTensor.storage);
  expect(wire.map(({ isContiguous }) => isContiguous)).toEqual([true, true]);
  expect(await tensors[1]!.read()).toEqual(await copiedTensor.read());
  // With batch size 1, a view of [1,S,H,D] already has its rows outermost.
  using rows = new ChunkBuffers({ device: ctx.device, order: "sbhd" });
  const singleTensor = fromArray(ctx, values(5 * 3 * 4, 1), [1, 5, 3, 4]).permute([0, 2, 1, 3]);
  expect(rows.contiguous([singleTensor]).wire[0]!.storage).toBe(singleTensor.storage);
  expect(rows.contiguous([keptTensor]).wire[0]!.storage).not.toBe(keptTensor.storage);
});

test("narrow returns contiguous rows of a chunk, into which the rows of several ranks can be copied", async () => {
  const { strided } = createKv(5);
  using buffers = new ChunkBuffers({ device: ctx.device, order: "sbhd" });
  const fullChunk = buffers.empty(strided, 7);
  for (const [firstRow, count] of [
    [0, 5],
    [5, 2],
  ] as const) {
    const rowsView = buffers.narrow(fullChunk, firstRow, count);
    expect(rowsView.wire.every(({ isContiguous }) => isContiguous)).toBe(true);
    using rows = strided[0]!.slice(2, 0, count);
    using sourceRows = strided[1]!.slice(2, 0, count);
    buffers.copy([rows, sourceRows], rowsView);
  }
  expect(buffers.narrow(fullChunk, 7, 0).tensors[0]!.shape).toEqual([2, 3, 0, 4]);
  for (const [i, tensor] of fullChunk.tensors.entries()) {
    using firstFiveRows = tensor.slice(2, 0, 5);
    using lastTwoRows = tensor.slice(2, 5, 7);
    using sourceRows = strided[i]!.slice(2, 0, 2);
    expect(await firstFiveRows.read()).toEqual(await strided[i]!.read());
    expect(await lastTwoRows.read()).toEqual(await sourceRows.read());
  }
});

test("release frees the memory of a chunk, but not tensors of the caller", async () => {
  const { dense } = createKv(5);
  using buffers = new ChunkBuffers({ device: ctx.device, order: "sbhd" });
  const allocatedBefore = await allocatedBytes();
  const chunk = buffers.empty(dense, 5);
  buffers.release(chunk);
  expect(await allocatedBytes()).toBe(allocatedBefore);
  using heads = new ChunkBuffers({ device: ctx.device });
  heads.release(heads.contiguous(dense));
  expect(dense.map(({ isDisposed }) => isDisposed)).toEqual([false, false]);
});

test("sendTransfers and recvTransfers create one transfer per tensor", () => {
  using buffers = new ChunkBuffers({ device: ctx.device });
  const chunk = buffers.contiguous(createKv(2).dense);
  expect(sendTransfers(chunk, 3)).toEqual(chunk.wire.map((tensor) => ({ tensor, to: 3 })));
  expect(recvTransfers(chunk, 1)).toEqual(chunk.wire.map((tensor) => ({ tensor, from: 1 })));
});
