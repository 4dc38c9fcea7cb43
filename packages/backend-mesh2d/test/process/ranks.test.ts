import { checkTrials, type Measurement } from "@mosaic/conformance";
import { expect, test } from "vitest";
import { bundled, launched } from "../../../../vitest.program.ts";

const script = await bundled(new URL("rank.ts", import.meta.url));

test.each([
  [2, 2],
  [2, 3],
])(
  "real processes in a grid of %d × %d are as exact as one device for every mask, schedule and channel",
  async (rows, columns) => {
    const args = [String(rows), String(columns)];
    const ranks = await launched<Measurement[]>({ script, ranks: rows * columns, args });
    expect(ranks[0]!.length).toBeGreaterThan(20);
    checkTrials("mesh2d", ranks);
  },
);
