import { loadNccl } from "./addon.ts";

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
