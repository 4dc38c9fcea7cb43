import { existsSync } from "node:fs";
import { join } from "node:path";
import { type Environment, findAddon, loadAddon, sitePackages, translateErrors } from "@mosaic/runtime";

const libraryNames = ["libnccl.so.2", "libnccl.so"] as const;

/** Where NCCL may be, best first: MOSAIC_NCCL_LIBRARY and nothing else, or the usual names, then Python's packages. */
export function libraryCandidates(env: Environment = process.env): readonly string[] {
  if (env.MOSAIC_NCCL_LIBRARY) return [env.MOSAIC_NCCL_LIBRARY];
  // NVIDIA's packages lie in a directory each, or since CUDA 13 some of them in one.
  const pythonLibraries = sitePackages(env).flatMap((directory) =>
    ["nccl", "cu13"].map((packageDirectory) => join(directory, "nvidia", packageDirectory, "lib", libraryNames[0])),
  );
  return [...libraryNames, ...new Set(pythonLibraries.filter((file) => existsSync(file)))];
}

/** How a transport uses NCCL; 0 and "" leave it to NCCL. */
interface TransportOptions {
  readonly minCtas: number;
  readonly maxCtas: number;
  readonly netName: string;
  readonly warmUp: boolean;
}

/** The exports of native/addon.cc, which documents each. Failures are errors whose `code` is a number. */
interface NcclAddon {
  readonly protocol: number;
  load(candidates: readonly string[]): readonly [version: string, path: string];
  open(options: TransportOptions): number;
}

/** Where the addon of this platform lies. */
const addonPath: string = findAddon("mosaic_collectives_nccl", import.meta.url);

let cachedAddon: NcclAddon | undefined;

/** The addon, loaded when it is first needed; it needs neither CUDA nor NCCL. */
function loadNcclAddon(): NcclAddon {
  cachedAddon ??= loadAddon<NcclAddon>({
    packageName: "@mosaic/collectives-nccl",
    description: "the NCCL transport",
    path: addonPath,
    protocol: 3, // `kBindingVersion` in native/addon.cc
    requirements: "g++ and CMake",
  });
  return cachedAddon;
}

/** Loads NCCL, once for the process: its version, and where it was found. */
export function loadNccl(): readonly [version: string, path: string] {
  return translateErrors(() => loadNcclAddon().load(libraryCandidates()));
}

/** Makes the transport of one rank: the address of a `MosaicTransport`. NCCL must have been loaded. */
export function openTransport(options: TransportOptions): number {
  return translateErrors(() => loadNcclAddon().open(options));
}

/** The NCCL of this machine. */
export interface NcclSystem {
  /** "2.27.3" */
  readonly version: string;
  /** The library that was loaded. */
  readonly library: string;
  /** The NCCL_* variables of the environment, which choose networks, transports and algorithms. */
  readonly settings: Readonly<Record<string, string>>;
}

/**
 * The NCCL that `nccl()` would use. It needs no GPU.
 *
 * @throws DeviceError that reports what is missing, or too old, and what to do about it; AddonLoadError.
 */
export function ncclSystem(): NcclSystem {
  const [version, library] = loadNccl();
  const settings = Object.entries(process.env).filter(([name]) => name.startsWith("NCCL_"));
  return { version, library, settings: Object.fromEntries(settings) as Record<string, string> };
}
