import { lookup } from "node:dns/promises";
import { isIP } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { RendezvousError, UsageError } from "../errors.ts";
import type { NodesPlan } from "../launch-plan.ts";

const RETRY_MS = 200;

/**
 * The address that node 0 listens at: the endpoint's own, or all interfaces with `--bind-any`. A name is resolved until the
 * deadline, for the names of services and pods appear late. Rejects with UsageError where the name is one of the loopback interface:
 * /etc/hosts often has the host's own name there, and no other node would reach it.
 */
export async function bindAddress(
  { endpoint, bindAny, timeoutMs }: NodesPlan,
  isEnding: () => boolean,
): Promise<string> {
  const { host } = endpoint;
  if (bindAny) return isIP(host) === 6 ? "::" : "0.0.0.0";
  if (isIP(host) > 0) return host;
  if (host === "localhost") return "127.0.0.1";
  const deadline = Date.now() + timeoutMs;
  const addresses = await resolveName(host, () => isEnding() || Date.now() >= deadline);
  const outside = addresses.find((address) => !isLoopback(address));
  if (outside !== undefined) return outside;
  throw new UsageError(
    `--rdzv-endpoint ${host}: resolves to ${addresses.join(", ")} on this host, which other nodes cannot reach; ` +
      "pass an address of this host that they can, or --bind-any",
  );
}

const isLoopback = (address: string): boolean => address.startsWith("127.") || address === "::1";

async function resolveName(host: string, isOver: () => boolean): Promise<readonly string[]> {
  for (;;) {
    try {
      const found = await lookup(host, { all: true });
      return found.toSorted((a, b) => a.family - b.family).map(({ address }) => address);
    } catch (error) {
      if (isOver())
        throw new RendezvousError(`--rdzv-endpoint ${host}: cannot be resolved: ${(error as Error).message}`);
      await delay(RETRY_MS);
    }
  }
}
