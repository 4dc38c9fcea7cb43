import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { faults, hopperFaults } from "./fault-list.ts";
import { compileEngine, hopper, portable, testFault } from "./faults.ts";

// Tests the tests: kernels with a fault must fail them. Each fault costs a compilation, so by default only one of each
// kind runs; MOSAIC_FAULTS=all runs every one.
const runsAllFaults = process.env.MOSAIC_FAULTS === "all";
const directory = mkdtempSync(join(tmpdir(), "mosaic-faults-"));

beforeAll(() => compileEngine(directory), 300_000);
afterAll(() => rmSync(directory, { recursive: true }));

describe.each([
  { name: "for every GPU", family: portable, list: faults },
  { name: "Hopper's", family: hopper, list: hopperFaults },
])("kernels $name", ({ family, list }) => {
  test("pass the tests without a fault", { timeout: 300_000 }, async () => {
    expect(await testFault(null, family, directory)).toBe("");
  });

  test.each(runsAllFaults ? list : list.slice(0, 4))(
    "fail the tests with a fault: $name",
    { timeout: 300_000 },
    async (fault) => {
      const verdict = await testFault(fault, family, directory);
      expect(verdict).not.toBe("");
      if (runsAllFaults) console.log(`${fault.name}: ${verdict}`);
    },
  );
});
