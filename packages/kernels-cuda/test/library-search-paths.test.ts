import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";

// NVIDIA's cuBLASLt does not work with the emulated driver, so the search paths are taken from the header alone.
const directory = mkdtempSync(join(tmpdir(), "mosaic-search-paths-"));
afterAll(() => rmSync(directory, { recursive: true }));
const native = fileURLToPath(new URL("../native", import.meta.url));
const file = "libcublasLt.so.13";
const program = join(directory, "search-paths");
const main = `#include <cstdio>
#include "blas/library_search_paths.h"
int main() { for (const auto& each : mosaic::cuda::librarySearchPaths("${file}")) std::puts(each.c_str()); }`;
writeFileSync(`${program}.cc`, main);
execFileSync(process.env.CXX ?? "c++", ["-std=c++20", "-I", native, `${program}.cc`, "-o", program]);

/** Returns the search paths after the toolkit's. */
function searchPaths(env: NodeJS.ProcessEnv): string[] {
  const [toolkit, ...otherPaths] = execFileSync(program, { env, encoding: "utf8" }).trim().split("\n");
  expect(toolkit).toBe(`/usr/local/cuda/lib64/${file}`);
  return otherPaths;
}

function createFile(...path: readonly string[]): string {
  const fullPath = join(directory, ...path);
  mkdirSync(dirname(fullPath), { recursive: true });
  writeFileSync(fullPath, "");
  return fullPath;
}

test("the packages of a Python on the PATH, of its link target and of VIRTUAL_ENV are searched", () => {
  const python = createFile("torch", "bin", "python3");
  const library = createFile("torch", "lib", "python3.12", "site-packages", "nvidia", "cu13", "lib", file);
  expect(searchPaths({ PATH: `/nowhere:${dirname(python)}` })[0]).toBe(library);
  const linkDirectory = join(directory, "links");
  mkdirSync(linkDirectory);
  symlinkSync("../torch/bin/python3", join(linkDirectory, "python3"));
  expect(searchPaths({ PATH: linkDirectory })[0]).toBe(library);
  expect(searchPaths({ VIRTUAL_ENV: join(directory, "torch") })[0]).toBe(library);
});

test("PYTHONPATH is searched first, including the separate cuBLAS package of versions before CUDA 13", () => {
  const library = createFile("site", "nvidia", "cublas", "lib", file);
  expect(searchPaths({ PYTHONPATH: join(directory, "site"), VIRTUAL_ENV: join(directory, "torch") })[0]).toBe(library);
});
