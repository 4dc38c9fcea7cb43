import { checkTrials, formatMesh, type Measurement, meshSize } from "@mosaic/conformance";
import { expect, test } from "vitest";
import { bundled, launched } from "../../../../vitest.program.ts";

const script = await bundled(new URL("rank.ts", import.meta.url));

test.each([{ sp: 3 }, { node: 2, gpu: 2 }].map((mesh) => [formatMesh(mesh), meshSize(mesh)] as const))(
  "real processes on %s are as exact as one device for every mask, placement and shard size",
  async (mesh, size) => {
    const ranks = await launched<Measurement[]>({ script, ranks: size, args: [mesh] });
    expect(ranks[0]!.length).toBeGreaterThan(100);
    checkTrials("ulysses", ranks);
  },
);
