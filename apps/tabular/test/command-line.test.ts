import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const run = (
  program: string,
  ...args: readonly string[]
): { status: number | null; stdout: string; stderr: string } => {
  const path = fileURLToPath(new URL(`../dist/${program}.js`, import.meta.url));
  return spawnSync(process.execPath, [path, ...args], { encoding: "utf8" });
};

const programs = [
  ["main", "--weights, --seeds, --ensemble, --json", ["--seeds", "0"], "--seeds: expected an integer from 1 to 1000"],
  [
    "train",
    "--refine, --steps, --cells, --seed, --out, --checkpoint",
    ["--steps", "x"],
    "--steps: expected an integer",
  ],
  [
    "flights",
    "--rows, --known, --weights",
    ["--rows", "3", "--known", "3"],
    "--known: expected an integer from 1 to 2",
  ],
] as const;

test.each(programs)("%s --help lists the options", (program, options) => {
  const { status, stdout, stderr } = run(program, "--help");
  expect([status, stderr]).toEqual([0, ""]);
  const listedOptions = [...stdout.matchAll(/^ {2}(--[\w-]+)/gm)].map(([, name]) => name);
  expect(new Set(listedOptions)).toEqual(new Set(options.split(", ")));
});

test.each(programs)(
  "%s rejects an invalid command line with its usage and exit code 2",
  (program, _, args, message) => {
    for (const [invalidArgs, expected] of [
      [["--unknown"], "Unknown option '--unknown'"],
      [args, message],
    ] as const) {
      const { status, stdout, stderr } = run(program, ...invalidArgs);
      expect([status, stdout]).toEqual([2, ""]);
      expect(stderr).toMatch(new RegExp(`^${expected}.*\n\n[^]*-h, --help`));
    }
  },
);
