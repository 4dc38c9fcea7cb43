import { cpSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { leftovers } from "./faults/leftovers.ts";
import { type RunResult, type RunOptions, runRanks } from "./faults/run.ts";

/** `MOSAIC_FAULT_REPEAT=20` proves that it is not luck. */
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
  { name: "unknown backend", expected: /OptionError: backend: expected one of .*"ring".*, received "star"/ },
];

/** The fault ended in what it should, in time, and nothing of the run is left. */
async function runWithFault(options: RunOptions, { expected, code }: Omit<Fault, "name">): Promise<void> {
  const ended = await runRanks(options);
  expect(ended).toMatchObject({ output: expect.stringMatching(expected), code: code ?? expect.any(Number) });
  expect(ended).not.toMatchObject({ code: 0 });
  expect(ended.took).toBeLessThan(LIMIT_MS);
  expect(leftovers(ended.mark, ended)).toEqual([]);
}

describe.each(Array.from({ length: REPEAT }, (_, i) => i + 1))("a fault, time %i:", () => {
  it.each(faults)("$name", ({ name, ...expected }) => runWithFault({ ranks: 3, args: [name] }, expected));

  it("the launcher is killed", async () => {
    const ended = await runRanks({ ranks: 3, args: ["none"], killLauncher: true });
    expect(ended.signal).toBe("SIGKILL");
    expect(ended.segments.length).toBeGreaterThan(0);
    await vanished(ended);
  });
});

/** Resolves when nothing of a run is left any more; throws, naming it, after the limit. */
async function vanished(ended: RunResult): Promise<void> {
  for (const until = Date.now() + LIMIT_MS; leftovers(ended.mark, ended).length > 0; ) {
    if (Date.now() > until) expect(leftovers(ended.mark, ended)).toEqual([]);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

interface Manifest {
  readonly dependencies?: Readonly<Record<string, string>>;
}

/** Where a package lies; some export no package.json. */
function packageDirectory(name: string): string {
  return realpathSync(fileURLToPath(new URL(`../../../node_modules/${name}`, import.meta.url)));
}

/** A package and all that it needs. */
function collectDependencies(name: string, found: Set<string> = new Set()): Set<string> {
  if (found.has(name)) return found;
  found.add(name);
  const { dependencies = {} } = JSON.parse(
    readFileSync(join(packageDirectory(name), "package.json"), "utf8"),
  ) as Manifest;
  for (const each of Object.keys(dependencies)) collectDependencies(each, found);
  return found;
}

describe("an installation without the native addon", () => {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-no-addon-"));
  const entry = join(directory, "rank.mjs");

  beforeAll(() => {
    for (const each of collectDependencies("@mosaic/attention")) {
      const from = packageDirectory(each);
      const to = join(directory, "node_modules", each);
      mkdirSync(to, { recursive: true });
      for (const part of ["package.json", "dist"]) cpSync(join(from, part), join(to, part), { recursive: true });
    }
    cpSync(fileURLToPath(new URL("./faults/rank.mjs", import.meta.url)), entry);
  });
  afterAll(() => rmSync(directory, { recursive: true, force: true }));

  it.each(Array.from({ length: REPEAT }, (_, i) => i + 1))("reports what to do, time %i", () =>
    runWithFault(
      { ranks: 3, entry, args: ["addon missing"] },
      { expected: /AddonLoadError: [^]*@mosaic\/kernels-cpu/ },
    ),
  );
});
