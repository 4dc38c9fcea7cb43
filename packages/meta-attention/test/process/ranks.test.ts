import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { onWorld } from "@mosaic/conformance";
import { expect, test } from "vitest";
import { runStep } from "../step.ts";
import { makeWorld } from "../world.ts";
import { trial } from "./trial.ts";
import { bundled } from "../../../../vitest.program.ts";

const launcher = fileURLToPath(new URL("cli.js", import.meta.resolve("@mosaic/launcher")));
const script = await bundled(new URL("rank.ts", import.meta.url));

test("3 real processes do, to the bit, what 3 ranks of one process do", async () => {
  const expected = await onWorld(makeWorld, { size: 3 }, (ctx) => runStep(ctx, trial));
  const directory = mkdtempSync(join(tmpdir(), "mosaic-meta-"));
  try {
    const job = spawn(process.execPath, [launcher, "--nproc-per-node", "3", script, directory], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    const [reported, complained, [code]] = await Promise.all([text(job.stdout), text(job.stderr), once(job, "close")]);
    expect(code, `${reported}\n${complained}`).toBe(0);
    for (const [rank, { out, dx, gradients, chosen }] of expected.entries()) {
      const found = JSON.parse(readFileSync(join(directory, `${rank}.json`), "utf8"));
      const plain = Object.fromEntries(Object.entries(gradients).map(([name, values]) => [name, Array.from(values)]));
      expect(found).toEqual({ out: Array.from(out), dx: Array.from(dx), gradients: plain, chosen });
    }
  } finally {
    rmSync(directory, { recursive: true });
  }
});
