import { existsSync } from "node:fs";
import { join } from "node:path";
import { AddonLoadError } from "@mosaic/core";
import { type Environment, findAddon, loadAddon, sitePackages, translateErrors } from "@mosaic/runtime";

const libraryName = "libucp.so.0";

/**
 * Returns paths of UCX in order of preference: only MOSAIC_UCX_LIBRARY if it is set, else the usual name, then Python
 * packages.
 */
export function libraryCandidates(env: Environment = process.env): readonly string[] {
  if (env.MOSAIC_UCX_LIBRARY) return [env.MOSAIC_UCX_LIBRARY];
  const pythonLibraries = sitePackages(env).flatMap((directory) =>
    [libraryName, "libucp.so"].map((name) => join(directory, "libucx", "lib", name)),
  );
  return [libraryName, ...new Set(pythonLibraries.filter((file) => existsSync(file)))];
}

/**
 * The exports of native/addon.cc, which documents each of them. Failures are thrown as errors with a numeric `code`.
 */
interface UcxAddon {
  readonly protocol: number;
  load(candidates: readonly string[]): readonly [version: string, path: string];
  open(network: string, ports: string): number;
}

const addonPath: string = findAddon("mosaic_collectives_ucx", import.meta.url);

let cachedAddon: UcxAddon | undefined;

/** Returns the addon, which is loaded at the first call. It does not need UCX. */
function loadUcxAddon(): UcxAddon {
  cachedAddon ??= loadAddon<UcxAddon>({
    packageName: "@mosaic/collectives-ucx",
    description: "the UCX transport",
    path: addonPath,
    protocol: 1, // `kBindingVersion` in native/addon.cc
    requirements: "g++ and CMake",
  });
  return cachedAddon;
}

/** Loads UCX, once per process. Returns its version and its path. Throws an AddonLoadError. */
export function loadUcx(): readonly [version: string, path: string] {
  const addon = loadUcxAddon();
  try {
    return addon.load(libraryCandidates());
  } catch (cause) {
    throw new AddonLoadError((cause as Error).message, { cause });
  }
}

/**
 * Makes the transport of one rank. Returns the address of its `MosaicTransport`. UCX must have been loaded. "" leaves a
 * choice to UCX.
 */
export function openTransport(network: string, ports: string): number {
  return translateErrors(() => loadUcxAddon().open(network, ports));
}

/** Information about the UCX of this machine. */
export interface UcxSystem {
  /** Version, for example "1.13.1". */
  readonly version: string;
  /** Path of the loaded library. */
  readonly library: string;
  /** The UCX_* variables of the environment, which choose networks, transports and protocols. */
  readonly settings: Readonly<Record<string, string>>;
}

/**
 * Returns information about the UCX that `ucx()` would use.
 *
 * @throws AddonLoadError that reports what is missing or too old, and the remedy.
 */
export function ucxSystem(): UcxSystem {
  const [version, library] = loadUcx();
  const settings = Object.entries(process.env).filter(([name]) => name.startsWith("UCX_"));
  return { version, library, settings: Object.fromEntries(settings) as Record<string, string> };
}
