import type { System } from "./system.ts";

/** The memory that this process's control groups allow, in bytes; undefined if they set no limit. */
export function memoryLimit(system: System): number | undefined {
  const limits = [...filesOf(system, "", "memory.max"), ...filesOf(system, "memory", "memory.limit_in_bytes")]
    .map((text) => Number(text.trim()))
    // "max" is no number; version 1 writes no limit as nearly 2⁶³.
    .filter((bytes) => bytes > 0 && bytes < 2 ** 60);
  return limits.length > 0 ? Math.min(...limits) : undefined;
}

/** Processors' worth of time that they allow; undefined if they set no limit. */
export function cpuLimit(system: System): number | undefined {
  const quotas = filesOf(system, "", "cpu.max").map((text) => {
    const [quota, period] = text.trim().split(" ").map(Number);
    return quota! / period!;
  });
  const periods = filesOf(system, "cpu", "cpu.cfs_period_us");
  filesOf(system, "cpu", "cpu.cfs_quota_us").forEach((text, i) => quotas.push(Number(text) / Number(periods[i])));
  const limits = quotas.filter((share) => share > 0);
  return limits.length > 0 ? Math.min(...limits) : undefined;
}

/** The contents of `file` in this process's group and those above it; `controller` is "" for version 2. */
function filesOf(system: System, controller: string, file: string): readonly string[] {
  const group = (system.read("/proc/self/cgroup") ?? "")
    .split("\n")
    .map((line) => line.split(":"))
    .find(([, controllers]) => controllers?.split(",").includes(controller))?.[2];
  if (group === undefined) return [];
  const parts = group.split("/").filter(Boolean);
  const folders = parts.map((_, depth) => parts.slice(0, depth + 1).join("/"));
  return ["", ...folders].flatMap((folder) => {
    const path = ["/sys/fs/cgroup", controller, folder, file].filter(Boolean).join("/");
    return system.read(path) ?? [];
  });
}
