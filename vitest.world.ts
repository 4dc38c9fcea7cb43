import { world } from "@mosaic/collectives-local";
import type { Case, MakeWorld } from "@mosaic/conformance";
import { cpu } from "@mosaic/kernels-cpu";
import { test } from "vitest";

/**
 * Creates ranks of one thread each in this process. The timeout is short, so that a missing message soon becomes an
 * error.
 */
export const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
  world(size, { ...options, device: (rank) => wrapDevice(cpu({ threads: 1, index: rank })), timeout: 20 });

/** Registers each case as a test. */
export function register(cases: readonly Case[], timeout?: number): void {
  test.each(cases.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run(), timeout);
}
