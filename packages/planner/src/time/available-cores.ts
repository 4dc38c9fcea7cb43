import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { allGatherObject, type Context } from "@mosaic/core";

/**
 * Returns the number of cores that all ranks of a host may use together. Ranks that are bound to cores of their own
 * (srun --cpu-bind, taskset, numactl) may use only these. Collective.
 */
export async function countAvailableCores(contexts: readonly Context[]): Promise<number> {
  const ownCpus = readAllowedCpus();
  const [cpusByRank] = await Promise.all(contexts.map((ctx) => allGatherObject(ctx, ownCpus)));
  const numCpus = new Set(cpusByRank!.flat()).size;
  // A quota of the control group limits how much of its cores a process may use.
  return ownCpus.length > 0 ? (availableParallelism() * numCpus) / ownCpus.length : availableParallelism();
}

/** Returns the CPUs that this process may run on; none if the system does not report them. */
function readAllowedCpus(): readonly number[] {
  try {
    const list = /^Cpus_allowed_list:\s*(.*)$/m.exec(readFileSync("/proc/self/status", "utf8"))?.[1] ?? "";
    return parseCpuList(list);
  } catch {
    return [];
  }
}

/** Returns the CPUs of a list as in cpuset(7): "0-3,8" is 0, 1, 2, 3 and 8. */
export function parseCpuList(list: string): readonly number[] {
  return list
    .split(",")
    .filter((range) => /^\d+(-\d+)?$/.test(range))
    .flatMap((range) => {
      const [first, last = first] = range.split("-").map(Number) as [number, number?];
      return Array.from({ length: last - first + 1 }, (_, i) => first + i);
    });
}
