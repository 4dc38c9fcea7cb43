import { expect, test } from "vitest";
import { FreeLists } from "../src/free-lists.ts";
import type { MemoryBlock } from "../src/storage.ts";

const GRANULARITY = 256;
const MAX_BLOCK_BYTES = 65_536;
const MAX_BYTES = 1_048_576;

let numBlocks = 0;
const createBlock = (byteLength: number): MemoryBlock => ({ byteLength, address: 0, id: ++numBlocks });

test("a block is reused for every allocation that is rounded up to its size, the last freed block first", () => {
  const lists = new FreeLists(GRANULARITY);
  for (const byteLength of [2 * GRANULARITY, 3 * GRANULARITY, MAX_BLOCK_BYTES]) {
    const [first, second] = [createBlock(byteLength), createBlock(byteLength)];
    expect([lists.putBlock(first), lists.putBlock(second)]).toEqual([true, true]);
    expect(lists.bytes).toBe(2 * byteLength);
    expect(lists.takeBlock(byteLength - GRANULARITY)).toBeUndefined();
    expect(lists.takeBlock(byteLength + 1)).toBeUndefined();
    expect(lists.takeBlock(byteLength - GRANULARITY + 1)).toBe(second);
    expect(lists.takeBlock(byteLength)).toBe(first);
    expect(lists.takeBlock(byteLength)).toBeUndefined();
    expect(lists.bytes).toBe(0);
  }
});

test("zero bytes use a block of the smallest size, and invalid sizes none", () => {
  const lists = new FreeLists(GRANULARITY);
  const block = createBlock(GRANULARITY);
  lists.putBlock(block);
  for (const byteLength of [-1, 0.5, Number.NaN, Number.POSITIVE_INFINITY])
    expect(lists.takeBlock(byteLength)).toBeUndefined();
  expect(lists.takeBlock(0)).toBe(block);
});

test("blocks over 64 KiB, and blocks beyond 1 MiB in total, are not kept", () => {
  const lists = new FreeLists(GRANULARITY);
  expect(lists.putBlock(createBlock(MAX_BLOCK_BYTES + GRANULARITY))).toBe(false);
  expect(lists.bytes).toBe(0);
  const blocks = Array.from({ length: MAX_BYTES / MAX_BLOCK_BYTES }, () => createBlock(MAX_BLOCK_BYTES));
  for (const block of blocks) expect(lists.putBlock(block)).toBe(true);
  expect(lists.putBlock(createBlock(GRANULARITY))).toBe(false);
  expect(lists.bytes).toBe(MAX_BYTES);
  expect(lists.clear()).toEqual(blocks);
  expect([lists.bytes, lists.takeBlock(MAX_BLOCK_BYTES)]).toEqual([0, undefined]);
  expect(lists.putBlock(createBlock(GRANULARITY))).toBe(true);
});
