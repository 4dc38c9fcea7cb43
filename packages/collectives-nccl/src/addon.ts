import { existsSync } from "node:fs";
import { join } from "node:path";
import { type Environment, findAddon, loadAddon, sitePackages, translateErrors } from "@mosaic/runtime";

const libraryNames = ["libnccl.so.2", "libnccl.so"] as const;

/**
 * Returns paths of NCCL in order of preference: only MOSAIC_NCCL_LIBRARY if it is set, else the usual names, then
 * Python packages.
 */
export function libraryCandidates(env: Environment = process.env): readonly string[] {
  if (env.MOSAIC_NCCL_LIBRARY) return [env.MOSAIC_NCCL_LIBRARY];
  // NVIDIA's packages have a directory each. Since CUDA 13, some of them share one.
  const pythonLibraries = sitePackages(env).flatMap((directory) =>
    ["nccl", "cu13"].map((packageDirectory) => join(directory, "nvidia", packageDirectory, "lib", libraryNames[0])),
  );
  return [...libraryNames, ...new Set(pythonLibraries.filter((file) => existsSync(file)))];
}

/** Options of a transport. 0 and "" leave the choice to NCCL. */
interface TransportOptions {
  readonly minCtas: number;
  readonly maxCtas: number;
  readonly netName: string;
  readonly warmUp: boolean;
}

/**
 * The exports of native/addon.cc, which documents each of them. Failures are thrown as errors with a numeric `code`.
 */
interface NcclAddon {
  readonly protocol: number;
  load(candidates: readonly string[]): readonly [version: string, path: string];
  open(options: TransportOptions): number;
}

/** Path of the addon for this platform. */
const addonPath: string = findAddon("mosaic_collectives_nccl", import.meta.url);

let cachedAddon: NcclAddon | undefined;

/** Returns the addon, which is loaded at the first call. It needs neither CUDA nor NCCL. */
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

/** Loads NCCL, once per process. Returns its version and its path. */
export function loadNccl(): readonly [version: string, path: string] {
  return translateErrors(() => loadNcclAddon().load(libraryCandidates()));
}

/** Makes the transport of one rank. Returns the address of its `MosaicTransport`. NCCL must have been loaded. */
export function openTransport(options: TransportOptions): number {
  return translateErrors(() => loadNcclAddon().open(options));
}

/** Information about the NCCL of this machine. */
export interface NcclSystem {
  /** Version, for example "2.27.3". */
  readonly version: string;
  /** Path of the loaded library. */
  readonly library: string;
  /** The NCCL_* variables of the environment, which choose networks, transports and algorithms. */
  readonly settings: Readonly<Record<string, string>>;
}

/**
 * Returns information about the NCCL that `nccl()` would use. Requires no GPU.
 *
 * @throws DeviceError that reports what is missing or too old, and the remedy; AddonLoadError.
 */
export function ncclSystem(): NcclSystem {
  const [version, library] = loadNccl();
  const settings = Object.entries(process.env).filter(([name]) => name.startsWith("NCCL_"));
  return { version, library, settings: Object.fromEntries(settings) as Record<string, string> };
}
