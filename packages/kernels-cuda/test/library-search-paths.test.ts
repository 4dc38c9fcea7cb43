import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";

// NVIDIA's cuBLASLt does not go with the stand-in driver, so the search paths come from the header alone.
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

/** The search paths after the toolkit's. */
function searchPaths(env: NodeJS.ProcessEnv): string[] {
  const [toolkit, ...rest] = execFileSync(program, { env, encoding: "utf8" }).trim().split("\n");
  expect(toolkit).toBe(`/usr/local/cuda/lib64/${file}`);
  return rest;
}

function put(...path: readonly string[]): string {
  const whole = join(directory, ...path);
  mkdirSync(dirname(whole), { recursive: true });
  writeFileSync(whole, "");
  return whole;
}

test("in the packages of a Python on the PATH, and of what it links to", () => {
  const python = put("torch", "bin", "python3");
  const library = put("torch", "lib", "python3.12", "site-packages", "nvidia", "cu13", "lib", file);
  expect(searchPaths({ PATH: `/nowhere:${dirname(python)}` })[0]).toBe(library);
  const links = join(directory, "links");
  mkdirSync(links);
  symlinkSync("../torch/bin/python3", join(links, "python3"));
  expect(searchPaths({ PATH: links })[0]).toBe(library);
  expect(searchPaths({ VIRTUAL_ENV: join(directory, "torch") })[0]).toBe(library);
});

test("in a package of its own, as before CUDA 13, and of PYTHONPATH first", () => {
  const library = put("site", "nvidia", "cublas", "lib", file);
  expect(searchPaths({ PYTHONPATH: join(directory, "site"), VIRTUAL_ENV: join(directory, "torch") })[0]).toBe(library);
});
