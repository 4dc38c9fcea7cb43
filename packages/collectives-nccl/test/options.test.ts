import { OptionError, ShapeError } from "@mosaic/core";
import { expect, test } from "vitest";
import { libraryCandidates } from "../src/addon.ts";
import { nccl } from "../src/index.ts";
import { openRanks, tensor } from "./ranks.ts";

test.each([
  [{ minCtas: 0 }, /nccl: minCtas: expected an integer from 1 to 64, received 0/],
  [{ maxCtas: 2.5 }, /nccl: maxCtas: expected an integer/],
  [{ minCtas: 8, maxCtas: 4 }, /expected minCtas ≤ maxCtas, received 8 and 4/],
  [{ timeout: -1 }, /timeout: expected seconds/],
  [{ channels: 4 }, /nccl: expected options among timeout, .*received "channels"/],
] as const)("%j will not do", (options, message) => {
  expect(() => nccl(options as object)).toThrow(OptionError);
  expect(() => nccl(options as object)).toThrow(message);
});

test("devices of other kinds are refused, with what serves them", async () => {
  await using ranks = await openRanks(1);
  const device = { ...ranks.devices[0]!, type: "cpu" };
  await expect(nccl().connect({ device, rank: 0, size: 1 })).rejects.toThrow(
    /expected a device of type cuda, received cpu; use local\(\)/,
  );
});

test("arguments are checked before anything is posted", async () => {
  await using ranks = await openRanks(2);
  const [group] = ranks.groups;
  const x = tensor(ranks.devices[0]!, [1, 2, 3, 4, 5, 6], [2, 3]);
  expect(() => group!.allReduce(x.transpose(0, 1), "sum", { label: "step 2" })).toThrow(
    /^step 2, rank 0: allReduce \(world\): expected a contiguous tensor/,
  );
  expect(() => group!.allGather(x, x)).toThrow(ShapeError);
  expect(() => group!.broadcast(x, 2)).toThrow(/expected a rank from 0 to 1, received 2/);
  expect(group!.traffic()).toEqual({ bytesSent: 0, bytesReceived: 0, messagesSent: 0 });
});

test("settings reach NCCL", async () => {
  await using ranks = await openRanks(2, { nccl: { minCtas: 1, maxCtas: 4, warmUp: false, network: "Socket" } });
  const xs = ranks.devices.map((device, rank) => tensor(device, [rank], [1]));
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
  for (const x of xs) expect(Array.from(await x.read())).toEqual([1]);
});

test("the library that is named, else the usual names, else Python's", () => {
  expect(libraryCandidates({ MOSAIC_NCCL_LIBRARY: "/opt/libnccl.so" })).toEqual(["/opt/libnccl.so"]);
  expect(libraryCandidates({}).slice(0, 2)).toEqual(["libnccl.so.2", "libnccl.so"]);
});
