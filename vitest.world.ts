import { world } from "@mosaic/collectives-local";
import type { Case, MakeWorld } from "@mosaic/conformance";
import { cpu } from "@mosaic/kernels-cpu";
import { test } from "vitest";

/** Ranks of one thread each, all in this process. A message that never comes is an error soon. */
export const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
  world(size, { ...options, device: (rank) => wrapDevice(cpu({ threads: 1, index: rank })), timeout: 20 });

/** Makes tests of cases. */
export function register(cases: readonly Case[], timeout?: number): void {
  test.each(cases.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run(), timeout);
}
