import { existsSync, readdirSync, readlinkSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, dirname, join, resolve } from "node:path";

const names = ["libnccl.so.2", "libnccl.so"] as const;

/** Where NCCL may be, best first: MOSAIC_NCCL_LIBRARY and nothing else, or the usual names, then Python's packages. */
export function candidates(env: NodeJS.ProcessEnv = process.env): readonly string[] {
  if (env.MOSAIC_NCCL_LIBRARY) return [env.MOSAIC_NCCL_LIBRARY];
  // NVIDIA's packages lie in a folder each, or since CUDA 13 some of them in one.
  const ofPython = sitePackages(env).flatMap((folder) =>
    ["nccl", "cu13"].map((part) => join(folder, "nvidia", part, "lib", names[0])),
  );
  return [...names, ...new Set(ofPython.filter((file) => existsSync(file)))];
}

/** Folders that Python imports from, of the environment in use first. */
function sitePackages({ PYTHONPATH = "", VIRTUAL_ENV, CONDA_PREFIX, PATH }: NodeJS.ProcessEnv): string[] {
  const roots = [VIRTUAL_ENV, CONDA_PREFIX, ...rootsOn(PATH), join(homedir(), ".local"), "/usr/local", "/usr"];
  const installed = roots
    .flatMap((root) => (root ? [join(root, "lib"), join(root, "lib64")] : []))
    .flatMap((lib) => pythons(lib).map((python) => join(lib, python)))
    .flatMap((python) => [join(python, "site-packages"), join(python, "dist-packages")]);
  return [...PYTHONPATH.split(delimiter).filter(Boolean), ...installed];
}

/** Environments whose `bin/python3` is on the PATH, or is linked from there: they need not be activated. */
function rootsOn(path = ""): string[] {
  const found = path.split(delimiter).map((folder) => join(folder, "python3"));
  return found.filter((file) => existsSync(file)).flatMap((file) => linked(file).map((each) => dirname(dirname(each))));
}

/** A file, what it links to, and so on. */
function linked(file: string): string[] {
  try {
    return [file, ...linked(resolve(dirname(file), readlinkSync(file)))];
  } catch {
    return [file]; // the end of the chain
  }
}

function pythons(lib: string): string[] {
  try {
    return readdirSync(lib).filter((name) => /^python3(\.\d+)?$/.test(name));
  } catch {
    return []; // most of these folders do not exist on most hosts
  }
}
