import { inspect } from "node:util";
import { expect, test } from "vitest";
import {
  CollectiveMismatchError,
  DeviceError,
  errorFromFailure,
  formatValue,
  OutOfMemoryError,
  PeerLostError,
  ShapeError,
} from "../src/errors.ts";

test("formatValue shows the original name of a class that a bundler renamed", () => {
  class MinifiedTensor {
    readonly shape = [2];
  }
  Object.defineProperty(MinifiedTensor, "name", { value: "_Tensor" });
  expect(formatValue([new MinifiedTensor()])).toBe("[a Tensor]");
});

test("errorFromFailure parses a native message in the usual format into details", () => {
  const error = errorFromFailure(1, "crossEntropy: expected integers from 0 to 3, received 4");
  expect(error).toBeInstanceOf(DeviceError);
  expect(error.details).toEqual({ where: "crossEntropy", expected: "integers from 0 to 3", received: "4" });
  const connectMessage =
    "connect: rank 1: expected the same instruction set on all ranks, received avx2 on this rank; set MOSAIC_ISA on all ranks";
  expect(errorFromFailure(4, connectMessage).details).toEqual({
    where: "connect: rank 1",
    expected: "the same instruction set on all ranks",
    received: "avx2 on this rank",
    remedy: "set MOSAIC_ISA on all ranks",
  });
  expect(errorFromFailure(4, connectMessage).message).toBe(connectMessage);
});

test("errorFromFailure uses any other message as the location", () => {
  const error = errorFromFailure(2, "rank 2 (pid 71) exited");
  expect(error).toBeInstanceOf(PeerLostError);
  expect(error.details).toEqual({ where: "rank 2 (pid 71) exited" });
});

test.each(["gatherRows", "scatterAddRows"])("an index error of %s mentions Embedding and its table", (kernel) => {
  const error = errorFromFailure(1, `${kernel}: expected integers from 0 to 3, received 4`);
  expect(error.message).toBe(
    `${kernel}: expected integers from 0 to 3, received 4; in an Embedding, the indices are token ids and the table has 4 rows: enlarge the table, or correct the token ids`,
  );
  expect(error.details.where).toBe(kernel);
});

test("an error of receive buffers that exceed the memory has a remedy", () => {
  const message = "allReduce #5 (world): out of memory for 1048576 bytes of receive buffers";
  const error = errorFromFailure(6, message);
  expect(error).toBeInstanceOf(OutOfMemoryError);
  expect(error.message).toBe(
    `${message}; dispose tensors, use smaller batches, or raise the memoryLimit of the device`,
  );
});

const describeMismatch = (first: string, second: string) =>
  `k/v: rank 0 is at sendRecv #1 after attention by ring(sp): float32 [1,2,S,4], mask full, ${first}, rank 1 at sendRecv #1 after attention by ring(sp): float32 [1,2,S,4], mask full, ${second}; all ranks of a group must call the same collectives in the same order, with the same shapes`;

test("a mismatch of shard lengths mentions the option for unequal shards", () => {
  const error = errorFromFailure(
    4,
    describeMismatch("rows 512 over sp: 0:256 | 256:512", "rows 510 over sp: 0:255 | 255:510"),
  );
  expect(error).toBeInstanceOf(CollectiveMismatchError);
  expect(error.details.where).toBe("k/v");
  expect(error.details.received).toMatch(/^rank 0 is at .*rows 510 over sp: 0:255 \| 255:510$/);
  expect(error.details.remedy).toMatch(
    /^all ranks of a group .*; if shards are unequal, pass sequenceLength to the module$/,
  );
  expect(error.message).toBe(`${error.details.where}: ${error.details.received}; ${error.details.remedy}`);
});

test("a mismatch of shards in unshard mentions its option for unequal shards", () => {
  const describeCalls = (label: string, second: string) =>
    `${label}: rank 0 is at allGather #1 (world) float32 [5], counts b4dd089f, 20 bytes from rank 1, rank 1 at ${second}; all ranks of a group must call the same collectives in the same order, with the same shapes`;
  const unequalCall = "allGather #1 (world) float32 [6], counts b4e5b3cd, 24 bytes to rank 0";
  const remedy = "; if shards are unequal, pass length, the length of the whole axis, to unshard";
  const { message, details } = errorFromFailure(4, describeCalls("unshard", unequalCall));
  expect(message.endsWith(remedy)).toBe(true);
  expect(details.remedy?.endsWith(remedy)).toBe(true);
  for (const text of [
    describeCalls("gather", unequalCall),
    describeCalls("unshard", "allReduce #1 (world) sum float32 [6]"),
    describeCalls("unshard", unequalCall.replace("[6]", "[5]")),
  ])
    expect(errorFromFailure(4, text).message).toBe(text);
});

test("other mismatches do not mention the option for unequal shards", () => {
  const describeCrossAttention = (scale: number) =>
    `scale ${scale}, queries 8 over sp: 0:4 | 4:8, keys 6 over sp: 0:3 | 3:6`;
  expect(
    errorFromFailure(4, describeMismatch(describeCrossAttention(1), describeCrossAttention(2))).message,
  ).not.toMatch(/sequenceLength/);
  const error = errorFromFailure(4, describeMismatch("rows 8 over sp: 0:4 | 4:8", "rows 8 over sp: 0:8:2 | 1:9:2"));
  expect(error.message).not.toMatch(/sequenceLength/);
});

test("inspect prints the message of an error once", () => {
  const error = new ShapeError({ where: "here", expected: "one thing", received: "another" });
  const nativeError = errorFromFailure(2, "here: expected one thing, received another");
  for (const candidateError of [error, nativeError]) {
    expect(inspect(candidateError).split("one thing")).toHaveLength(2);
    expect(inspect(candidateError)).not.toContain("troubleshooting");
    expect(candidateError.details).toMatchObject({ where: "here", expected: "one thing", received: "another" });
    expect(candidateError.help).toMatch(/^node_modules\/@mosaic\/core\/dist\/troubleshooting\.md#/);
  }
});
