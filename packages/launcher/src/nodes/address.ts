import type { LookupAddress } from "node:dns";
import { lookup } from "node:dns/promises";
import { isIP } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { RendezvousError, UsageError } from "../errors.ts";

const RETRY_DELAY_MS = 200;
/** While the name cannot be resolved, that is reported so often; first after a second. */
const REPORT_INTERVAL_MS = 5000;

/** What resolving a name needs of its surroundings. */
export interface Resolver {
  /** Whether this node was signalled to end. */
  readonly isEnding: () => boolean;
  /** Receives why it still waits. */
  readonly onWaiting: (message: string) => void;
  /** Default: the system's, with /etc/hosts; a parameter so that a test can be a name server. */
  readonly lookup?: (host: string) => Promise<readonly LookupAddress[]>;
}

/** Where a host is to listen. */
export interface BindOptions {
  readonly endpoint: { readonly host: string };
  /** At all interfaces. */
  readonly bindsAllAddresses: boolean;
  /** How long a name may be unknown. */
  readonly timeoutMs: number;
  /** Of the option or the variable that names the endpoint. */
  readonly name?: string;
}

/**
 * The address that the first host listens at: the endpoint's own, or all interfaces with `bindsAllAddresses`. A name is resolved until the
 * deadline, for the names of services and pods appear late. Rejects with UsageError where the name is one of the loopback interface:
 * /etc/hosts often has the host's own name there, and no other node would reach it.
 */
export async function bindAddress(options: BindOptions, resolver: Resolver): Promise<string> {
  const { endpoint, bindsAllAddresses, timeoutMs, name = "--rdzv-endpoint" } = options;
  const { host } = endpoint;
  if (bindsAllAddresses) return isIP(host) === 6 ? "::" : "0.0.0.0";
  if (isIP(host) > 0) return host;
  if (host === "localhost") return "127.0.0.1";
  const addresses = await resolveName(`${name} ${host}`, host, timeoutMs, resolver);
  const externalAddress = addresses.find((address) => !isLoopback(address));
  if (externalAddress !== undefined) return externalAddress;
  throw new UsageError(
    `${name} ${host}: resolves to ${addresses.join(", ")} on this host, which other nodes cannot reach; ` +
      `pass an address of this host that other nodes can reach, or ${name.startsWith("--") ? "--bind-any" : "MOSAIC_BIND_ANY=1"}`,
  );
}

const isLoopback = (address: string): boolean => address.startsWith("127.") || address === "::1";

/** The addresses of a name, those of IPv4 first. Names without an address yet are looked up again until the deadline. */
async function resolveName(
  subject: string,
  host: string,
  timeoutMs: number,
  resolver: Resolver,
): Promise<readonly string[]> {
  const { isEnding, onWaiting, lookup: resolve = (name) => lookup(name, { all: true }) } = resolver;
  const deadline = Date.now() + timeoutMs;
  let lastReportedAt = Date.now() - REPORT_INTERVAL_MS + 1000;
  for (;;) {
    try {
      const records = await resolve(host);
      return records.toSorted((a, b) => a.family - b.family).map(({ address }) => address);
    } catch (error) {
      const now = Date.now();
      const message = `${subject}: cannot be resolved: ${(error as Error).message}`;
      if (isEnding() || now >= deadline)
        throw new RendezvousError(`${message}; correct the name, or add it to DNS or to /etc/hosts on all nodes`);
      if (now - lastReportedAt >= REPORT_INTERVAL_MS) {
        lastReportedAt = now;
        onWaiting(`waiting for name resolution: ${message}`);
      }
      await delay(RETRY_DELAY_MS);
    }
  }
}
