import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { onTestFinished } from "vitest";

/**
 * Creates a repository in a temporary directory, from `{ path: text or JSON value }`. It is removed when the test ends.
 */
export function createRepository(files) {
  const root = mkdtempSync(join(tmpdir(), "mosaic-scripts-"));
  onTestFinished(() => rmSync(root, { recursive: true }));
  for (const [path, content] of Object.entries({ "package.json": { devDependencies: {} }, ...files })) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), typeof content === "string" ? content : JSON.stringify(content));
  }
  return root;
}

/** Returns the files of a package of that repository: its manifest, and `files`, with paths relative to the package. */
export function describePackage(directory, { dependencies = [], devDependencies = [], ...manifest } = {}, files = {}) {
  const table = (names) => Object.fromEntries(names.map((name) => [name, "*"]));
  const parent = directory.includes("/") ? directory : `packages/${directory}`;
  const name = `@mosaic/${directory.split("/").at(-1)}`;
  return {
    [`${parent}/package.json`]: {
      name,
      dependencies: table(dependencies),
      devDependencies: table(devDependencies),
      exports: { ".": "./dist/index.js", "./package.json": "./package.json" },
      ...manifest,
    },
    ...Object.fromEntries(Object.entries(files).map(([path, text]) => [`${parent}/${path}`, text])),
  };
}
