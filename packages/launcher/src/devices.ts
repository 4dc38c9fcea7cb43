import { readdirSync } from "node:fs";

/**
 * How many NVIDIA GPUs a rank started here would see: what CUDA_VISIBLE_DEVICES leaves, else the device nodes.
 * No driver is loaded for it, so a machine without one simply has none.
 */
export function countGpus(env: NodeJS.ProcessEnv): number {
  const visible = env.CUDA_VISIBLE_DEVICES;
  if (visible !== undefined) {
    const ids = visible.split(",").map((id) => id.trim());
    // CUDA stops at the first id that it does not know, and -1 is how people say "none".
    const end = ids.findIndex((id) => id === "" || id.startsWith("-"));
    return end < 0 ? ids.length : end;
  }
  try {
    return readdirSync("/dev").filter((name) => /^nvidia\d+$/.test(name)).length;
  } catch {
    return 0;
  }
}
