import { cpSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { listLeftovers } from "./faults/leftovers.ts";
import { type RunResult, type RunOptions, runRanks } from "./faults/run.ts";

/** Number of repetitions. Use `MOSAIC_FAULT_REPEAT=20` to find flaky failures. */
const REPEAT = Number(process.env["MOSAIC_FAULT_REPEAT"] ?? process.env["FAULT_REPEAT"] ?? 2);
const LIMIT_MS = 5000;

interface Fault {
  readonly name: string;
  readonly expected: RegExp;
  readonly code?: number;
}

const faults: readonly Fault[] = [
  { name: "throws", expected: /rank 1 .*failed[^]*Error: a seeded fault[^]*rank\.mjs/ },
  { name: "is killed", expected: /rank 1 .*SIGKILL/, code: 137 },
  { name: "exits early", expected: /PeerLostError: .*rank 1/ },
  { name: "mismatched shapes", expected: /CollectiveMismatchError: / },
  { name: "mismatched call order", expected: /CollectiveMismatchError: / },
  { name: "late beyond the deadline", expected: /CollectiveTimeoutError: .*rank 1/ },
  { name: "wrong option", expected: /OptionError: init: expected options among .*, received "spsize"/ },
  {
    name: "different seeds",
    expected:
      /CollectiveMismatchError: .*init: mesh {"sp":3}, seed 0, rank 1 at call #1 \(world\): init: mesh {"sp":3}, seed 1;/,
  },
  { name: "different meshes", expected: /CollectiveMismatchError: .*init: mesh {"(sp|dp)":3/ },
  { name: "unknown backend", expected: /OptionError: backend: expected one of .*"ring".*, received "star"/ },
];

/** Checks that a fault causes the expected error within the limit, and that the run leaves no resources. */
async function runWithFault(options: RunOptions, { expected, code }: Omit<Fault, "name">): Promise<void> {
  const runResult = await runRanks(options);
  expect(runResult).toMatchObject({ output: expect.stringMatching(expected), code: code ?? expect.any(Number) });
  expect(runResult).not.toMatchObject({ code: 0 });
  expect(runResult.durationMs).toBeLessThan(LIMIT_MS);
  expect(listLeftovers(runResult.mark, runResult)).toEqual([]);
}

describe.each(Array.from({ length: REPEAT }, (_, i) => i + 1))("faults, repetition %i:", () => {
  it.each(faults)("reports the fault and leaves no resources: $name", ({ name, ...expected }) =>
    runWithFault({ ranks: 3, args: [name] }, expected),
  );

  it("leaves no resources if the launcher is killed", async () => {
    const ended = await runRanks({ ranks: 3, args: ["none"], killLauncher: true });
    expect(ended.signal).toBe("SIGKILL");
    expect(ended.segments.length).toBeGreaterThan(0);
    await waitUntilCleanedUp(ended);
  });
});

/** Waits until a run has left no resources. After the limit, throws an error that lists the remaining ones. */
async function waitUntilCleanedUp(runResult: RunResult): Promise<void> {
  for (const deadline = Date.now() + LIMIT_MS; listLeftovers(runResult.mark, runResult).length > 0; ) {
    if (Date.now() > deadline) expect(listLeftovers(runResult.mark, runResult)).toEqual([]);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

interface Manifest {
  readonly dependencies?: Readonly<Record<string, string>>;
}

/** Returns the directory of a package. Some packages do not export package.json. */
function packageDirectory(name: string): string {
  return realpathSync(fileURLToPath(new URL(`../../../node_modules/${name}`, import.meta.url)));
}

/** Returns a package and all of its dependencies. */
function collectDependencies(name: string, foundNames: Set<string> = new Set()): Set<string> {
  if (foundNames.has(name)) return foundNames;
  foundNames.add(name);
  const { dependencies = {} } = JSON.parse(
    readFileSync(join(packageDirectory(name), "package.json"), "utf8"),
  ) as Manifest;
  for (const dependency of Object.keys(dependencies)) collectDependencies(dependency, foundNames);
  return foundNames;
}

describe("an installation without the native addon", () => {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-no-addon-"));
  const entry = join(directory, "rank.mjs");

  beforeAll(() => {
    for (const packageName of collectDependencies("@mosaic/attention")) {
      const sourceFolder = packageDirectory(packageName);
      const targetFolder = join(directory, "node_modules", packageName);
      mkdirSync(targetFolder, { recursive: true });
      for (const shippedItem of ["package.json", "dist"])
        cpSync(join(sourceFolder, shippedItem), join(targetFolder, shippedItem), { recursive: true });
    }
    cpSync(fileURLToPath(new URL("./faults/rank.mjs", import.meta.url)), entry);
  });
  afterAll(() => rmSync(directory, { recursive: true, force: true }));

  it.each(Array.from({ length: REPEAT }, (_, i) => i + 1))("reports the missing package, repetition %i", () =>
    runWithFault(
      { ranks: 3, entry, args: ["addon missing"] },
      { expected: /AddonLoadError: [^]*@mosaic\/kernels-cpu/ },
    ),
  );
});
