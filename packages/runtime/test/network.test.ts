import { OptionError } from "@mosaic/core";
import { expect, test, vi } from "vitest";
import { findInterfaces } from "../src/network.ts";

vi.mock("node:os", async (importOriginal) => ({
  ...(await importOriginal<typeof import("node:os")>()),
  networkInterfaces: () => ({
    lo: [{ address: "127.0.0.1", family: "IPv4" }],
    eth0: [
      { address: "10.1.255.1", family: "IPv4" },
      { address: "fd00:1::5", family: "IPv6" },
    ],
    eth1: [{ address: "10.2.0.1", family: "IPv4" }],
    down: undefined,
  }),
}));

test.each([
  ["eth1", ["eth1"]],
  ["down", ["down"]],
  ["10.1.0.0/16", ["eth0"]],
  ["10.0.0.0/8", ["eth0", "eth1"]],
  ["0.0.0.0/0", ["lo", "eth0", "eth1"]],
  ["10.2.0.1/32", ["eth1"]],
  ["fd00:1::/32", ["eth0"]],
  ["fd00:1::5/128", ["eth0"]],
  ["eth1, 10.0.0.0/8,lo", ["eth1", "eth0", "lo"]],
])("network %j selects the interfaces %j", (network, expected) => {
  expect(findInterfaces(network, "test: network")).toEqual(expected);
});

const received = "received interfaces lo (127.0.0.1), eth0 (10.1.255.1, fd00:1::5), eth1 (10.2.0.1), down ()";
const expectedFormat = 'expected an interface such as "eth1", or a subnet such as "10.1.0.0/16"';

test.each([
  ["eth", `expected an interface of this host named eth, ${received}`],
  ["10.3.0.0/16", `expected an interface of this host in the subnet 10.3.0.0/16, ${received}`],
  ["fd00:2::/32", `expected an interface of this host in the subnet fd00:2::/32, ${received}`],
  ["", `${expectedFormat}, received ""`],
  ["eth1,", `${expectedFormat}, received ""`],
  ["10.1.0.0/33", `${expectedFormat}, received "10.1.0.0/33"`],
  ["fd00:1::/129", `${expectedFormat}, received "fd00:1::/129"`],
  ["eth0/16", `${expectedFormat}, received "eth0/16"`],
  ["10.1.0.0/16/8", `${expectedFormat}, received "10.1.0.0/16/8"`],
])("network %j is rejected", (network, message) => {
  expect(() => findInterfaces(network, "test: network")).toThrow(OptionError);
  expect(() => findInterfaces(network, "test: network")).toThrow(`test: network: ${message}`);
});

test("a network that is not a string is rejected", () => {
  expect(() => findInterfaces(undefined as never, "test: network")).toThrow(/^test: network: expected a string of/);
});
