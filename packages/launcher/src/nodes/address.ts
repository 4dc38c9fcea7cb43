import type { LookupAddress } from "node:dns";
import { lookup } from "node:dns/promises";
import { isIP } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { RendezvousError, UsageError } from "../errors.ts";

const RETRY_DELAY_MS = 200;
/** Interval of reports while the name cannot be resolved. The first report is after 1 s. */
const REPORT_INTERVAL_MS = 5000;

/** Callbacks of name resolution. */
export interface Resolver {
  /** Whether this node was signalled to end. */
  readonly isEnding: () => boolean;
  /** Called with the reason while resolution is retried. */
  readonly onWaiting: (message: string) => void;
  /**
   * Name lookup. Default: the system's, including /etc/hosts. A parameter, so that tests can replace the name server.
   */
  readonly lookup?: (host: string) => Promise<readonly LookupAddress[]>;
}

/** The address at which a host is to listen. */
export interface BindOptions {
  readonly endpoint: { readonly host: string };
  /** Whether to listen on all interfaces. */
  readonly bindsAllAddresses: boolean;
  /** Timeout of name resolution. */
  readonly timeoutMs: number;
  /** Name of the option or variable with the endpoint, for messages. */
  readonly name?: string;
}

/**
 * Returns the address at which the first host listens: that of the endpoint, or all interfaces with
 * `bindsAllAddresses`. Resolution is retried until the timeout, because names of services and pods may appear late.
 * Rejects with UsageError if the name resolves only to loopback addresses, which other nodes cannot reach: /etc/hosts
 * often maps the host's own name to one.
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

/** Whether a name or address is of the loopback interface. */
export const isLoopback = (name: string): boolean => name === "localhost" || name === "::1" || name.startsWith("127.");

/**
 * Resolves a name to its addresses, IPv4 first. The lookup is retried until the timeout. Rejects with RendezvousError.
 */
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
