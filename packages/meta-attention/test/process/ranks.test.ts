import { runOnWorld } from "@mosaic/conformance";
import { expect, test } from "vitest";
import { bundled, launched } from "../../../../vitest.program.ts";
import { makeWorld } from "../../../../vitest.world.ts";
import { runStep } from "../step.ts";
import { trial } from "./trial.ts";

const script = await bundled(new URL("rank.ts", import.meta.url));

test("3 processes compute results that are bitwise equal to those of 3 ranks in one process", async () => {
  const expected = await runOnWorld(makeWorld, { size: 3 }, (ctx) => runStep(ctx, trial));
  const rankResults = await launched({ script, ranks: 3 });
  for (const [rank, { out, dx, gradients, chosen }] of expected.entries()) {
    const gradientArrays = Object.fromEntries(
      Object.entries(gradients).map(([name, values]) => [name, Array.from(values)]),
    );
    expect(rankResults[rank]).toEqual({ out: Array.from(out), dx: Array.from(dx), gradients: gradientArrays, chosen });
  }
});
