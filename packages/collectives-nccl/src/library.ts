import { readdirSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

const names = ["libnccl.so.2", "libnccl.so"] as const;

/** Where NCCL may be, best first: MOSAIC_NCCL_LIBRARY and nothing else, or the usual names, then Python's packages. */
export function candidates(env: NodeJS.ProcessEnv = process.env): readonly string[] {
  if (env.MOSAIC_NCCL_LIBRARY) return [env.MOSAIC_NCCL_LIBRARY];
  return [...names, ...sitePackages(env).map((folder) => join(folder, "nvidia", "nccl", "lib", names[0]))];
}

/** Folders that pip installs into, of the environment in use first. */
function sitePackages({ VIRTUAL_ENV, CONDA_PREFIX }: NodeJS.ProcessEnv): string[] {
  const roots = [VIRTUAL_ENV, CONDA_PREFIX, join(homedir(), ".local"), "/usr/local", "/usr"];
  return roots
    .flatMap((root) => (root ? [join(root, "lib")] : []))
    .flatMap((lib) => pythons(lib).map((python) => join(lib, python)))
    .flatMap((python) => [join(python, "site-packages"), join(python, "dist-packages")])
    .filter((folder) => entries(folder).includes("nvidia"));
}

function pythons(lib: string): string[] {
  return entries(lib).filter((name) => /^python3(\.\d+)?$/.test(name));
}

function entries(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return []; // most of these folders do not exist on most hosts
  }
}
