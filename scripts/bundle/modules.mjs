import { cpSync, existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** Modules that are not needed: Vite loads lightningcss only to transform CSS. */
const UNUSED_MODULES = new Set(["lightningcss"]);
const EXCLUDED_FILE_PATTERN = /\.(map|d\.[cm]?ts|md)$/;

/** Returns the directories below node_modules of the named packages and all their dependencies in the lock file. */
export function collectModules(root, names) {
  const lock = JSON.parse(readFileSync(join(root, "package-lock.json"), "utf8")).packages;
  const modulePaths = new Set();
  const visit = (importerPath, name) => {
    const modulePath = UNUSED_MODULES.has(name) ? undefined : resolve(lock, importerPath, name);
    if (modulePath === undefined || modulePaths.has(modulePath) || !existsSync(join(root, modulePath))) return;
    modulePaths.add(modulePath);
    const { dependencies, optionalDependencies, peerDependencies } = lock[modulePath];
    for (const dependency of Object.keys({ ...dependencies, ...optionalDependencies })) visit(modulePath, dependency);
    for (const dependency of Object.keys(peerDependencies ?? {}))
      if (!isOptionalPeer(lock[modulePath], dependency)) visit(modulePath, dependency);
  };
  for (const name of names) visit("", name);
  return [...modulePaths].sort((a, b) => (a < b ? -1 : 1));
}

const isOptionalPeer = ({ peerDependenciesMeta }, name) => peerDependenciesMeta?.[name]?.optional === true;

/** Resolves a name as Node.js does: in the node_modules of the importing package, then in those of its parents. */
function resolve(lock, importerPath, name) {
  for (
    let ancestorPath = importerPath;
    ;
    ancestorPath = ancestorPath.slice(0, Math.max(0, ancestorPath.lastIndexOf("node_modules/") - 1))
  ) {
    const candidate = `${ancestorPath === "" ? "" : `${ancestorPath}/`}node_modules/${name}`;
    if (candidate in lock) return candidate;
    if (ancestorPath === "") return undefined;
  }
}

/**
 * Copies those directories without their nested node_modules. Nested packages that are needed are listed themselves.
 */
export function stageModules(root, directory, modules) {
  for (const path of modules) {
    const nestedModules = join(root, path, "node_modules");
    const filter = (sourcePath) => !sourcePath.startsWith(nestedModules) && !EXCLUDED_FILE_PATTERN.test(sourcePath);
    cpSync(join(root, path), join(directory, path), { recursive: true, filter });
  }
}
