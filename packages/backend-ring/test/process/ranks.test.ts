import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { checkMeasurements, formatMesh, type Measurement, meshSize } from "@mosaic/conformance";
import type { Coordinate } from "@mosaic/core";
import { expect, test } from "vitest";
import { bundled } from "../../../../vitest.program.ts";

const launcher = fileURLToPath(new URL("cli.js", import.meta.resolve("@mosaic/launcher")));
const script = await bundled(new URL("rank.ts", import.meta.url));

/** Runs the ranks of a mesh as processes; resolves to what each of them measured. */
async function measured(mesh: Coordinate, directory: string): Promise<Measurement[][]> {
  const size = meshSize(mesh);
  const job = spawn(
    process.execPath,
    [launcher, "--nproc-per-node", String(size), script, formatMesh(mesh), directory],
    {
      stdio: ["ignore", "pipe", "pipe"],
    },
  );
  const [reported, complained, [code]] = await Promise.all([text(job.stdout), text(job.stderr), once(job, "close")]);
  expect(code, `${reported}\n${complained}`).toBe(0);
  return Array.from({ length: size }, (_, rank) => JSON.parse(readFileSync(join(directory, `${rank}.json`), "utf8")));
}

/** Every number of ranks to 8 is tried within one process. */
const meshes: Coordinate[] = [{ sp: 1 }, { sp: 2 }, { sp: 3 }, { sp: 5 }, { sp: 8 }, { node: 2, gpu: 2 }];

test.each(meshes.map((mesh) => [formatMesh(mesh), mesh] as const))(
  "real processes, %s: every mask and placement, grouped heads, unequal shards, and modules",
  async (_, mesh) => {
    const directory = mkdtempSync(join(tmpdir(), "mosaic-ring-"));
    try {
      const ranks = await measured(mesh, directory);
      expect(ranks[0]!.length).toBeGreaterThan(100);
      for (const i of ranks[0]!.keys())
        checkMeasurements(
          "ring",
          ranks.map((measurements) => measurements[i]!),
        );
    } finally {
      rmSync(directory, { recursive: true });
    }
  },
);
