import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { checkMeasurements, type Measurement } from "@mosaic/conformance";
import { expect, test } from "vitest";
import { bundled } from "../../../../vitest.program.ts";

const launcher = fileURLToPath(new URL("cli.js", import.meta.resolve("@mosaic/launcher")));
const script = await bundled(new URL("rank.ts", import.meta.url));

/** Runs the ranks of a grid as processes; resolves to what each of them measured. */
async function measured(rows: number, columns: number, directory: string): Promise<Measurement[][]> {
  const size = rows * columns;
  const args = ["--nproc-per-node", String(size), script, String(rows), String(columns), directory];
  const job = spawn(process.execPath, [launcher, ...args], { stdio: ["ignore", "pipe", "pipe"] });
  const [reported, complained, [code]] = await Promise.all([text(job.stdout), text(job.stderr), once(job, "close")]);
  expect(code, `${reported}\n${complained}`).toBe(0);
  return Array.from({ length: size }, (_, rank) => JSON.parse(readFileSync(join(directory, `${rank}.json`), "utf8")));
}

test.each([
  [2, 2],
  [2, 3],
])("real processes, %d × %d: every mask, in both forms, on one channel and on two", async (rows, columns) => {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-mesh2d-"));
  try {
    const ranks = await measured(rows, columns, directory);
    expect(ranks[0]!.length).toBeGreaterThan(20);
    for (const i of ranks[0]!.keys()) {
      const ofTrial = ranks.map((measurements) => measurements[i]!);
      checkMeasurements("mesh2d", ofTrial);
    }
  } finally {
    rmSync(directory, { recursive: true });
  }
});
