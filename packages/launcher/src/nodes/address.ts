import { lookup } from "node:dns/promises";
import { isIP } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { RendezvousError, UsageError } from "../errors.ts";

const RETRY_MS = 200;

/** Where a host is to listen. */
export interface BindPlace {
  readonly endpoint: { readonly host: string };
  /** At all interfaces. */
  readonly bindAny: boolean;
  /** How long a name may be unknown. */
  readonly timeoutMs: number;
  /** Of the option or the variable that names the endpoint. */
  readonly name?: string;
}

/**
 * The address that the first host listens at: the endpoint's own, or all interfaces with `bindAny`. A name is resolved until the
 * deadline, for the names of services and pods appear late. Rejects with UsageError where the name is one of the loopback interface:
 * /etc/hosts often has the host's own name there, and no other node would reach it.
 */
export async function bindAddress(
  { endpoint, bindAny, timeoutMs, name = "--rdzv-endpoint" }: BindPlace,
  isEnding: () => boolean,
): Promise<string> {
  const { host } = endpoint;
  if (bindAny) return isIP(host) === 6 ? "::" : "0.0.0.0";
  if (isIP(host) > 0) return host;
  if (host === "localhost") return "127.0.0.1";
  const deadline = Date.now() + timeoutMs;
  const addresses = await resolveName(`${name} ${host}`, host, () => isEnding() || Date.now() >= deadline);
  const outside = addresses.find((address) => !isLoopback(address));
  if (outside !== undefined) return outside;
  throw new UsageError(
    `${name} ${host}: resolves to ${addresses.join(", ")} on this host, which other nodes cannot reach; ` +
      `pass an address of this host that they can, or ${name.startsWith("--") ? "--bind-any" : "MOSAIC_BIND_ANY=1"}`,
  );
}

const isLoopback = (address: string): boolean => address.startsWith("127.") || address === "::1";

async function resolveName(where: string, host: string, isOver: () => boolean): Promise<readonly string[]> {
  for (;;) {
    try {
      const found = await lookup(host, { all: true });
      return found.toSorted((a, b) => a.family - b.family).map(({ address }) => address);
    } catch (error) {
      if (isOver()) throw new RendezvousError(`${where}: cannot be resolved: ${(error as Error).message}`);
      await delay(RETRY_MS);
    }
  }
}
