import { checkTrials, type Measurement } from "@mosaic/conformance";
import { expect, test } from "vitest";
import { bundled, launched } from "../../../../vitest.program.ts";

const script = await bundled(new URL("rank.ts", import.meta.url));

test.each([
  [2, 2],
  [2, 3],
])("real processes, %d × %d: every mask, in both forms, on one channel and on two", async (rows, columns) => {
  const args = [String(rows), String(columns)];
  const ranks = await launched<Measurement[]>({ script, ranks: rows * columns, args });
  expect(ranks[0]!.length).toBeGreaterThan(20);
  checkTrials("mesh2d", ranks);
});
