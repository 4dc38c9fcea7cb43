import { expect, test } from "vitest";
import { compile } from "./native.ts";
import { measureScale } from "./scale.ts";

await compile("control_stress");

test("32 agents of 8 ranks complete every step within the limits of time and memory", async () => {
  const measured = await measureScale({ agents: 32, ranksPerAgent: 8, processes: 2 });
  expect(measured).toMatchObject({ ranks: 256, controlLost: 0 });
  expect(measured.rendezvous).toBeLessThan(10);
  for (const step of ["values", "positions", "storm", "split", "mismatch", "failure", "leave"] as const)
    expect(measured[step], step).toBeGreaterThanOrEqual(0);
  expect(measured.death).toBeGreaterThan(0);
  expect(measured.death).toBeLessThan(1);
  // A rank needs a thread, its connection and a table of members, which has only 8 bytes for each other rank.
  expect(measured.kilobytesPerRank).toBeLessThan(256);
});
