import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";

interface KernelMeasurement {
  readonly rung: number;
  readonly error: number;
  readonly deviceBytes: number;
  readonly sharedBytes: number;
  readonly ldmatrix: number;
  readonly conflicts: number;
  readonly mma: number;
  readonly wgmma: number;
}

const exec = promisify(execFile);
const root = fileURLToPath(new URL("..", import.meta.url));
const directory = mkdtempSync(join(tmpdir(), "mosaic-ladder-"));
/**
 * The output of benchmark.cc per rung, at 384 rows and keys, then at lengths that are not divisible by any tile size.
 */
let measured: readonly KernelMeasurement[] = [];

beforeAll(async () => {
  const options = ["-std=c++20", "-O1", "-march=x86-64-v3", "-Wno-unknown-pragmas", "-Wno-psabi"];
  const includeFlags = ["native", "native/emulation", "ladder", "../runtime/include"].flatMap((path) => [
    "-I",
    join(root, path),
  ]);
  const program = join(directory, "benchmark");
  const compilerArgs = [...options, ...includeFlags, join(root, "ladder/benchmark.cc"), "-o", program, "-lpthread"];
  await exec(process.env.CXX ?? "c++", compilerArgs);
  const { stdout } = await exec(program);
  measured = stdout
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as KernelMeasurement);
}, 300_000);
afterAll(() => rmSync(directory, { recursive: true }));

test("ldmatrix instructions have no bank conflicts", () => {
  expect(measured.map(({ conflicts }) => conflicts)).toEqual(measured.map(() => 0));
});

test("every rung matches the reference within its tolerance", () => {
  expect(measured).toHaveLength(12);
  for (const { rung, error } of measured) {
    // Tensor cores use weights rounded to bfloat16.
    expect(error, `rung ${rung}`).toBeLessThan(rung < 3 ? 1e-5 : 4e-3);
  }
});

test("the ladder's README states the measured counts", () => {
  const rows = 384;
  const expectedTable = measured.slice(0, 6).map(({ rung, deviceBytes, sharedBytes, ldmatrix, mma, wgmma }) => {
    const bytesPerRow = [deviceBytes / rows, sharedBytes / rows].map((bytes) => Math.round(bytes));
    return `| ${[rung, ...bytesPerRow, ldmatrix, mma, wgmma].join(" | ")} |`;
  });
  const readme = readFileSync(join(root, "ladder/README.md"), "utf8");
  const readmeTable = readme.split("\n").filter((line) => /^\| \d( \| \d+){5} \|$/.test(line));
  expect(readmeTable).toEqual(expectedTable);
});
