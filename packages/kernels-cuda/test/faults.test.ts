import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { compileRest, faults, verdictOn } from "./faults.ts";

// The tests of the tests: a kernel with a mistake in it must not pass. Each costs a compilation, so only one of each kind
// runs by default; MOSAIC_FAULTS=all runs every one.
const chosen = process.env.MOSAIC_FAULTS === "all" ? faults : faults.slice(0, 4);
const folder = mkdtempSync(join(tmpdir(), "mosaic-faults-"));

beforeAll(() => compileRest(folder), 300_000);
afterAll(() => rmSync(folder, { recursive: true }));

test("kernels without a fault pass", { timeout: 300_000 }, async () => {
  expect(await verdictOn(null, folder)).toBe("");
});

test.each(chosen)("is caught: $name", { timeout: 300_000 }, async (fault) => {
  expect(await verdictOn(fault, folder)).not.toBe("");
});
