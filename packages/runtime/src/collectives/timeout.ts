import { OptionError } from "@mosaic/core";

const defaultTimeout = 300;

/** Seconds that a collective may take: the option, else MOSAIC_COLLECTIVE_TIMEOUT, else 300. */
export function timeoutOf(given: number | undefined): number {
  const text = process.env.MOSAIC_COLLECTIVE_TIMEOUT;
  const timeout = given ?? (text ? Number(text) : defaultTimeout);
  // Nanoseconds must fit in 63 bits.
  if (timeout > 0 && timeout <= 1e9) return timeout;
  throw new OptionError({
    where: given === undefined ? "environment variable MOSAIC_COLLECTIVE_TIMEOUT" : "timeout",
    expected: "seconds, more than 0 and at most 1e9",
    received: String(given ?? text),
  });
}
