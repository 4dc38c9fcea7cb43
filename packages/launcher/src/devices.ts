import { readdirSync } from "node:fs";

/**
 * How many NVIDIA GPUs a rank started here would see: what CUDA_VISIBLE_DEVICES leaves of the device nodes. No driver is
 * loaded for it, so a machine without one simply has none.
 */
export function countGpus(env: NodeJS.ProcessEnv, nodes: number = deviceNodes()): number {
  const visible = env.CUDA_VISIBLE_DEVICES;
  if (visible === undefined) return nodes;
  const ids = visible.split(",").map((id) => id.trim());
  // CUDA stops at the first unknown id, and -1 is how users write "none".
  const end = ids.findIndex((id) => id === "" || id.startsWith("-") || isBeyond(id, nodes));
  return end < 0 ? ids.length : end;
}

/** Unknown without nodes, as under WSL. */
function isBeyond(id: string, nodes: number): boolean {
  return nodes > 0 && /^\d+$/.test(id) && Number(id) >= nodes;
}

function deviceNodes(): number {
  try {
    return readdirSync("/dev").filter((name) => /^nvidia\d+$/.test(name)).length;
  } catch {
    return 0;
  }
}
