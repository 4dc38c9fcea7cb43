// Packages that a package manager installed into a project: below node_modules, with pnpm in its own store.
import { existsSync, lstatSync, readdirSync, realpathSync } from "node:fs";
import { join } from "node:path";

/**
 * Maximum size in MiB of the umbrella and the launcher with all their dependencies, about a third above the current
 * size.
 */
export const INSTALLED_BUDGET_MIB = 16;

/** Returns the directories of the installed packages of a scope, such as "@mosaic", each once. */
export function listScopePackages(directory, scope) {
  const packageDirectories = [
    join(directory, "node_modules", scope),
    join(directory, "node_modules/.pnpm/node_modules", scope),
  ];
  const paths = packageDirectories
    .filter((at) => existsSync(at))
    .flatMap((at) => readdirSync(at).map((name) => join(at, name)));
  return [...new Set(paths.map((path) => realpathSync(path)))];
}

/** Returns the directories of addons, one for each package that has any. */
export function listPrebuilds(directory) {
  return listScopePackages(directory, "@mosaic")
    .map((path) => join(path, "prebuilds"))
    .filter((prebuilds) => existsSync(prebuilds));
}

/** Returns the bytes of all packages that a program needs to run. Development tools of the project are not counted. */
export function countInstalledBytes(directory) {
  return ["@mosaic", "@huggingface"]
    .flatMap((scope) => listScopePackages(directory, scope))
    .reduce((sum, path) => sum + countDirectoryBytes(path), 0);
}

function countDirectoryBytes(path) {
  const stat = lstatSync(path);
  if (stat.isSymbolicLink()) return 0;
  if (!stat.isDirectory()) return stat.size;
  // Nested packages are counted separately.
  const entries = readdirSync(path).filter((name) => name !== "node_modules");
  return entries.reduce((sum, name) => sum + countDirectoryBytes(join(path, name)), 0);
}
