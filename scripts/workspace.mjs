// The packages of this repository and their files.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";

const GENERATED_DIRECTORIES = new Set([
  "node_modules",
  "dist",
  "build",
  "build-cmake",
  "prebuilds",
  "coverage",
  "generated",
]);

/** Returns every workspace below `root`: `{ name, path, directory, dir, manifest, isProgram }`. */
export function listPackages(root) {
  const listChildren = (parent) =>
    existsSync(join(root, parent)) ? readdirSync(join(root, parent)).map((name) => `${parent}/${name}`) : [];
  return [...listChildren("packages"), ...listChildren("apps"), "benchmarks"]
    .filter((path) => existsSync(join(root, path, "package.json")))
    .map((path) => ({
      path,
      directory: path.split("/").at(-1),
      dir: join(root, path),
      manifest: JSON.parse(readFileSync(join(root, path, "package.json"), "utf8")),
      isProgram: !path.startsWith("packages/"),
    }))
    .map((one) => ({ ...one, name: one.manifest.name }));
}

/**
 * Returns the paths, relative to `dir`, of the hand-written files below it whose name ends with one of `extensions`.
 */
export function listFiles(dir, extensions) {
  const filePaths = [];
  const walk = (directory) => {
    for (const entry of readdirSync(directory, { withFileTypes: true })) {
      const path = join(directory, entry.name);
      if (entry.isDirectory()) {
        if (!GENERATED_DIRECTORIES.has(entry.name) && !entry.name.startsWith(".")) walk(path);
      } else if (extensions.some((extension) => entry.name.endsWith(extension))) filePaths.push(relative(dir, path));
    }
  };
  if (existsSync(dir)) walk(dir);
  return filePaths.sort((a, b) => (a < b ? -1 : 1));
}
