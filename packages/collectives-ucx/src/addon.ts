import { existsSync } from "node:fs";
import { join } from "node:path";
import { AddonLoadError } from "@mosaic/core";
import { type Environment, findAddon, loadAddon, sitePackages, translateErrors } from "@mosaic/runtime";

const libraryName = "libucp.so.0";

/** Where UCX may be, best first: MOSAIC_UCX_LIBRARY and nothing else, or the usual name, then Python's packages. */
export function libraryCandidates(env: Environment = process.env): readonly string[] {
  if (env.MOSAIC_UCX_LIBRARY) return [env.MOSAIC_UCX_LIBRARY];
  const pythonLibraries = sitePackages(env).flatMap((directory) =>
    [libraryName, "libucp.so"].map((name) => join(directory, "libucx", "lib", name)),
  );
  return [libraryName, ...new Set(pythonLibraries.filter((file) => existsSync(file)))];
}

/** The exports of native/addon.cc, which documents each. Failures are errors whose `code` is a number. */
interface UcxAddon {
  readonly protocol: number;
  load(candidates: readonly string[]): readonly [version: string, path: string];
  open(network: string, ports: string): number;
}

const addonPath: string = findAddon("mosaic_collectives_ucx", import.meta.url);

let cachedAddon: UcxAddon | undefined;

/** The addon, loaded when it is first needed; it does not need UCX. */
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

/** Loads UCX, once for the process: its version, and where it was found. Throws an AddonLoadError. */
export function loadUcx(): readonly [version: string, path: string] {
  const addon = loadUcxAddon();
  try {
    return addon.load(libraryCandidates());
  } catch (cause) {
    throw new AddonLoadError((cause as Error).message, { cause });
  }
}

/** Makes the transport of one rank: the address of a `MosaicTransport`. UCX must have been loaded; "" leaves it to UCX. */
export function openTransport(network: string, ports: string): number {
  return translateErrors(() => loadUcxAddon().open(network, ports));
}

/** The UCX of this machine. */
export interface UcxSystem {
  /** "1.13.1" */
  readonly version: string;
  /** The library that was loaded. */
  readonly library: string;
  /** The UCX_* variables of the environment, which choose networks, transports and protocols. */
  readonly settings: Readonly<Record<string, string>>;
}

/**
 * The UCX that `ucx()` would use.
 *
 * @throws AddonLoadError that reports what is missing, or too old, and what to do about it.
 */
export function ucxSystem(): UcxSystem {
  const [version, library] = loadUcx();
  const settings = Object.entries(process.env).filter(([name]) => name.startsWith("UCX_"));
  return { version, library, settings: Object.fromEntries(settings) as Record<string, string> };
}
