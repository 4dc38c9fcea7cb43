import { OptionError, ShapeError } from "@mosaic/core";
import { afterEach, expect, test, vi } from "vitest";
import { libraryCandidates } from "../src/addon.ts";
import { nccl } from "../src/index.ts";
import { openRanks, tensor } from "./ranks.ts";

test.each([
  [{ minCtas: 0 }, /nccl: minCtas: expected an integer from 1 to 64, received 0/],
  [{ maxCtas: 2.5 }, /nccl: maxCtas: expected an integer/],
  [{ minCtas: 8, maxCtas: 4 }, /expected minCtas ≤ maxCtas, received 8 and 4/],
  [{ timeout: -1 }, /timeout: expected seconds/],
  [{ channels: 4 }, /nccl: expected options among timeout, .*received "channels"/],
] as const)("the options %j are rejected", (options, message) => {
  expect(() => nccl(options as object)).toThrow(OptionError);
  expect(() => nccl(options as object)).toThrow(message);
});

afterEach(() => void vi.unstubAllEnvs());

test.each([
  ["lo", undefined, "=lo"],
  ["127.0.0.0/8", undefined, "=lo"],
  ["lo, 127.0.0.0/8", undefined, "=lo"],
  ["127.0.0.0/8", "^docker", "^docker"],
])("network %j with NCCL_SOCKET_IFNAME %j selects the interfaces %j", async (network, interfaceVariable, expected) => {
  vi.stubEnv("NCCL_SOCKET_IFNAME", interfaceVariable);
  await using ranks = await openRanks(2, { nccl: { network } });
  expect(ranks.groups).toHaveLength(2);
  expect(process.env.NCCL_SOCKET_IFNAME).toBe(expected);
});

test.each([
  ["none", /nccl: network: expected an interface of this host named none, received interfaces lo \(127\.0\.0\.1/],
  ["203.0.113.0/24", /expected an interface of this host in the subnet 203\.0\.113\.0\/24, received interfaces lo/],
  [
    "10.0.0.0/33",
    /expected an interface such as "eth1", or a subnet such as "10\.1\.0\.0\/16", received "10\.0\.0\.0\/33"/,
  ],
  ["lo,", /expected an interface such as "eth1", or a subnet such as "10\.1\.0\.0\/16", received ""/],
])("network %j is rejected when the ranks connect", async (network, message) => {
  vi.stubEnv("NCCL_SOCKET_IFNAME", undefined);
  await expect(openRanks(2, { nccl: { network } })).rejects.toThrow(OptionError);
  await expect(openRanks(2, { nccl: { network } })).rejects.toThrow(message);
});

test("devices of other types are rejected with an error that names local()", async () => {
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

test("the library candidates are MOSAIC_NCCL_LIBRARY alone, or else begin with the usual names", () => {
  expect(libraryCandidates({ MOSAIC_NCCL_LIBRARY: "/opt/libnccl.so" })).toEqual(["/opt/libnccl.so"]);
  expect(libraryCandidates({}).slice(0, 2)).toEqual(["libnccl.so.2", "libnccl.so"]);
});
