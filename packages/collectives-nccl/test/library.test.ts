import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { libraryCandidates } from "../src/addon.ts";

/** Creates a directory with these files. */
function createDirectoryWith(...files: readonly string[]): string {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-python-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  for (const file of files) {
    mkdirSync(dirname(join(directory, file)), { recursive: true });
    writeFileSync(join(directory, file), "");
  }
  return directory;
}

const packageLibraryPath = "lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";

test.each(["VIRTUAL_ENV", "CONDA_PREFIX"])("NCCL is found in the Python packages of %s", (variable) => {
  const root = createDirectoryWith(packageLibraryPath);
  expect(libraryCandidates({ [variable]: root })).toContain(join(root, packageLibraryPath));
});

test("NCCL is found beside the python3 on the PATH, even if its environment is not activated", () => {
  const root = createDirectoryWith("bin/python3", packageLibraryPath);
  expect(libraryCandidates({ PATH: `/nowhere:${join(root, "bin")}` })[2]).toBe(join(root, packageLibraryPath));
  const links = createDirectoryWith();
  symlinkSync(join(root, "bin/python3"), join(links, "python3"));
  expect(libraryCandidates({ PATH: links })[2]).toBe(join(root, packageLibraryPath));
});

test("NCCL is found in the common directory of CUDA 13's packages on the PYTHONPATH", () => {
  const file = "nvidia/cu13/lib/libnccl.so.2";
  const directory = createDirectoryWith(file);
  expect(libraryCandidates({ PYTHONPATH: directory })[2]).toBe(join(directory, file));
});
