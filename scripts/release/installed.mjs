// What a package manager put into a project: packages below node_modules, pnpm's in a store of its own.
import { existsSync, lstatSync, readdirSync, realpathSync } from "node:fs";
import { join } from "node:path";

/** MiB that the umbrella and the launcher may take with all that they depend on: about a third above what they take. */
export const INSTALLED_BUDGET_MIB = 16;

/** The directories of the installed packages of a scope, "@mosaic", each once. */
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

/** Directories of addons, one for each package that has any. */
export function listPrebuilds(directory) {
  return listScopePackages(directory, "@mosaic")
    .map((path) => join(path, "prebuilds"))
    .filter((prebuilds) => existsSync(prebuilds));
}

/** Bytes of the files of all packages that a program needs to run; the project's development tools are not counted. */
export function countInstalledBytes(directory) {
  return ["@mosaic", "@huggingface"]
    .flatMap((scope) => listScopePackages(directory, scope))
    .reduce((sum, path) => sum + countDirectoryBytes(path), 0);
}

function countDirectoryBytes(path) {
  const stat = lstatSync(path);
  if (stat.isSymbolicLink()) return 0;
  if (!stat.isDirectory()) return stat.size;
  // Packages of a package are counted as themselves.
  const entries = readdirSync(path).filter((name) => name !== "node_modules");
  return entries.reduce((sum, name) => sum + countDirectoryBytes(join(path, name)), 0);
}
