import { BlockList, isIP } from "node:net";
import { type NetworkInterfaceInfo, networkInterfaces } from "node:os";
import { expectValue, OptionError } from "@mosaic/core";

/**
 * Returns the names of this host's interfaces that an option `network` selects, either by name ("eth1") or by a subnet
 * of their addresses ("10.1.0.0/16"). Several are separated by commas. Error messages begin with `where`.
 *
 * @example
 * ```ts
 * import { findInterfaces } from "@mosaic/runtime";
 * findInterfaces("127.0.0.0/8", "nccl: network"); // => ["lo"]
 * findInterfaces("10.1.0.0/99", "nccl: network"); // throws nccl: network: expected an interface such as "eth1", or a subnet such as "10.1.0.0/16"
 * ```
 * @throws OptionError for a part that is neither an interface of this host nor a subnet of one.
 */
export function findInterfaces(network: string, where: string): readonly string[] {
  expectValue(where, typeof network === "string", "a string of interfaces or subnets, separated by commas", network);
  const interfaceNames = network.split(",").flatMap((item) => resolveInterfaceNames(item.trim(), where));
  return [...new Set(interfaceNames)];
}

function resolveInterfaceNames(item: string, where: string): readonly string[] {
  const interfaces = Object.entries(networkInterfaces());
  const isSubnet = item.includes("/");
  const subnet = isSubnet ? parseSubnet(item) : undefined;
  if (item === "" || (isSubnet && !subnet)) {
    throw new OptionError({
      where,
      expected: 'an interface such as "eth1", or a subnet such as "10.1.0.0/16"',
      received: JSON.stringify(item),
    });
  }
  const matchingInterfaces = interfaces.filter(([name, interfaceAddresses = []]) =>
    subnet ? interfaceAddresses.some((interfaceAddress) => isInSubnet(subnet, interfaceAddress)) : name === item,
  );
  if (matchingInterfaces.length > 0) return matchingInterfaces.map(([name]) => name);
  const interfaceTexts = interfaces.map(
    ([name, interfaceAddresses = []]) =>
      `${name} (${interfaceAddresses.map((interfaceAddress) => interfaceAddress.address).join(", ")})`,
  );
  throw new OptionError({
    where,
    expected: isSubnet ? `an interface of this host in the subnet ${item}` : `an interface of this host named ${item}`,
    received: `interfaces ${interfaceTexts.join(", ")}`,
  });
}

function parseSubnet(text: string): BlockList | undefined {
  const [, address = "", prefixLength = ""] = /^([^/]*)\/(\d+)$/.exec(text) ?? [];
  const version = isIP(address);
  if (version === 0 || Number(prefixLength) > (version === 4 ? 32 : 128)) return undefined;
  const subnet = new BlockList();
  subnet.addSubnet(address, Number(prefixLength), version === 4 ? "ipv4" : "ipv6");
  return subnet;
}

function isInSubnet(subnet: BlockList, { address, family }: NetworkInterfaceInfo): boolean {
  return subnet.check(address, family === "IPv6" ? "ipv6" : "ipv4");
}
