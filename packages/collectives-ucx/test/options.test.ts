import { OptionError } from "@mosaic/core";
import { expect, test } from "vitest";
import { libraryCandidates } from "../src/addon.ts";
import { ucx, world } from "../src/index.ts";

test.each([
  [{ connectTimeout: 0 }, /ucx: connectTimeout: expected seconds > 0/],
  [{ ports: "30000" }, /ucx: ports: expected a port range from 1 to 65535, such as "30000-30999", received "30000"/],
  [{ ports: "400-300" }, /ucx: ports: .*received "400-300"/],
  [{ ports: "60000-70000" }, /ucx: ports: .*received "60000-70000"/],
  [
    { network: "10.0.0/8" },
    /ucx: network: expected an interface such as "eth1", or a subnet such as "10\.1\.0\.0\/16", received "10\.0\.0\/8"/,
  ],
  [{ network: "10.0.0.0/33" }, /ucx: network: expected an interface such as "eth1", or a subnet/],
  [
    { network: "203.0.113.0/24" },
    /ucx: network: expected an interface of this host in the subnet 203\.0\.113\.0\/24, received interfaces .*lo \(127\.0\.0\.1/,
  ],
  [{ device: "eth0" }, /ucx: expected options among connectTimeout, name, network, ports, received "device"/],
] as const)("the options %j are rejected", (options, message) => {
  expect(() => ucx(options as object)).toThrow(OptionError);
  expect(() => ucx(options as object)).toThrow(message);
});

test("interfaces, subnets, lists of both, and port ranges are accepted", () => {
  for (const network of ["lo", "127.0.0.0/8", "lo, ::1/128", "mlx5_0:1"]) {
    expect(ucx({ network, ports: "30000-30999" }).name).toBe("ucx");
  }
});

test("devices of other types are rejected", async () => {
  const device = { type: "cuda" } as never;
  await expect(ucx().connect({ device, rank: 0, size: 1 })).rejects.toThrow(
    /ucx collectives: expected a device of type cpu, received cuda/,
  );
  const unusableDevice = { type: "cuda", empty() {}, [Symbol.dispose]() {} } as never;
  await expect(world(2, { device: () => unusableDevice })).rejects.toThrow(/expected a device of type cpu/);
});

test("the library candidates are MOSAIC_UCX_LIBRARY alone, or else begin with the usual name", () => {
  expect(libraryCandidates({ MOSAIC_UCX_LIBRARY: "/opt/libucp.so.0" })).toEqual(["/opt/libucp.so.0"]);
  expect(libraryCandidates({})[0]).toBe("libucp.so.0");
});
