import { checkTrials, formatMesh, type Measurement, meshSize } from "@mosaic/conformance";
import { expect, test } from "vitest";
import { bundled, launched } from "../../../../vitest.program.ts";

const script = await bundled(new URL("rank.ts", import.meta.url));

/** Other tests cover all numbers of ranks up to 8 within one process. */
const meshes = [{ sp: 1 }, { sp: 2 }, { sp: 3 }, { sp: 5 }, { sp: 8 }, { node: 2, gpu: 2 }];

test.each(meshes.map((mesh) => [formatMesh(mesh), meshSize(mesh)] as const))(
  "real processes on %s are as exact as one device for every mask, placement, shard size and module",
  async (mesh, size) => {
    const ranks = await launched<Measurement[]>({ script, ranks: size, args: [mesh] });
    expect(ranks[0]!.length).toBeGreaterThan(100);
    checkTrials("ring", ranks);
  },
);
