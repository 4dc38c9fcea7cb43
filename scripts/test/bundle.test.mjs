import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";

const directory = mkdtempSync(join(tmpdir(), "mosaic-test-bundle-"));
const [archive, missingPath] = [join(directory, "mosaic.tar.gz"), join(directory, "nothing")];
afterAll(() => rmSync(directory, { recursive: true }));

beforeAll(() => {
  const script = fileURLToPath(new URL("../bundle.mjs", import.meta.url));
  // The script fails if the archive is too large.
  const bundleResult = spawnSync(process.execPath, [script, "--out", archive], { encoding: "utf8" });
  expect(bundleResult).toMatchObject({
    status: 0,
    stderr: "",
    stdout: expect.stringMatching(/: \d+\.\d MiB, in \d+ s\n$/),
  });
  expect(spawnSync("tar", ["-xzf", archive, "-C", directory]).status).toBe(0);
  mkdirSync(missingPath);
}, 240_000);

/** Runs the unpacked `mosaic` with a PATH without programs, so that it cannot find another Node.js. */
function runMosaic(...args) {
  const options = { cwd: missingPath, env: { PATH: missingPath, HOME: missingPath }, encoding: "utf8" };
  const { status, stdout, stderr } = spawnSync("/bin/sh", ["../mosaic/mosaic", ...args], options);
  return { status, output: stdout + stderr };
}

test("the bundle's doctor reports no problems", () => {
  const { status, output } = runMosaic("doctor", "--json");
  expect([status, JSON.parse(output).problems]).toEqual([0, 0]);
  expect(output).toContain("all-reduce of two CPU ranks over shared memory passed");
});

test("the bundle runs its TypeScript tests, and rejects unknown names", () => {
  const { status, output } = runMosaic("test", "conformance");
  expect({ status, output }).toEqual({
    status: 0,
    output: expect.stringMatching(/\n {2}ok {6}conformance +[\d.]+ s\n$/),
  });
  expect(runMosaic("test", "nonsense")).toEqual({
    status: 2,
    output: expect.stringMatching(/expected one of .*conformance/),
  });
});

test("the bundle launches ranks, lists its benchmarks, and prints its usage", () => {
  const ranks = runMosaic("run", "-n", "2", "--exec", "../mosaic/runtime/bin/node", "-p", "`rank ${process.env.RANK}`");
  expect(ranks).toEqual({ status: 0, output: expect.stringMatching(/rank [01]\n.*rank [01]\n/) });
  expect(runMosaic("bench", "--list").output).toContain("ring");
  expect(runMosaic("gpu", "--list").output).toContain("benchmarks");
  expect(runMosaic()).toEqual({ status: 0, output: expect.stringContaining("./mosaic doctor") });
  expect(runMosaic("nonsense")).toEqual({ status: 1, output: expect.stringMatching(/no command "nonsense"/) });
});
