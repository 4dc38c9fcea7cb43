import { cpSync, existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** Vite loads it only to transform CSS. */
const UNUSED_MODULES = new Set(["lightningcss"]);
const EXCLUDED_FILES = /\.(map|d\.[cm]?ts|md)$/;

/** Directories below node_modules of the named packages and all they need, as the lock file has it. */
export function collectModules(root, names) {
  const lock = JSON.parse(readFileSync(join(root, "package-lock.json"), "utf8")).packages;
  const modulePaths = new Set();
  const visit = (from, name) => {
    const at = UNUSED_MODULES.has(name) ? undefined : resolve(lock, from, name);
    if (at === undefined || modulePaths.has(at) || !existsSync(join(root, at))) return;
    modulePaths.add(at);
    const { dependencies, optionalDependencies, peerDependencies } = lock[at];
    for (const each of Object.keys({ ...dependencies, ...optionalDependencies })) visit(at, each);
    for (const each of Object.keys(peerDependencies ?? {})) if (!isOptionalPeer(lock[at], each)) visit(at, each);
  };
  for (const name of names) visit("", name);
  return [...modulePaths].sort((a, b) => (a < b ? -1 : 1));
}

const isOptionalPeer = ({ peerDependenciesMeta }, name) => peerDependenciesMeta?.[name]?.optional === true;

/** As Node looks for it: in the node_modules of the package at `from`, then in those of the packages around it. */
function resolve(lock, from, name) {
  for (let at = from; ; at = at.slice(0, Math.max(0, at.lastIndexOf("node_modules/") - 1))) {
    const candidate = `${at === "" ? "" : `${at}/`}node_modules/${name}`;
    if (candidate in lock) return candidate;
    if (at === "") return undefined;
  }
}

/** Copies those directories, each without the packages inside it, which are directories of their own here. */
export function stageModules(root, directory, modules) {
  for (const path of modules) {
    const inside = join(root, path, "node_modules");
    const filter = (from) => !from.startsWith(inside) && !EXCLUDED_FILES.test(from);
    cpSync(join(root, path), join(directory, path), { recursive: true, filter });
  }
}
