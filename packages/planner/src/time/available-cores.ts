import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { type Context, fromArray } from "@mosaic/core";

/** Maximum number of CPUs of a Linux configuration (CONFIG_NR_CPUS). */
const MAX_CPUS = 8192;

/**
 * Returns the number of cores that all ranks of a host may use together. Ranks that are bound to cores of their own
 * (srun --cpu-bind, taskset, numactl) may use only these. Collective.
 */
export async function countAvailableCores(contexts: readonly Context[]): Promise<number> {
  const ownCpus = readAllowedCpus();
  const cpuCounts = await Promise.all(contexts.map((ctx) => countCpuUnion(ctx, ownCpus)));
  // A quota of the control group limits how much of its cores a process may use.
  return ownCpus.length > 0 ? (availableParallelism() * cpuCounts[0]!) / ownCpus.length : availableParallelism();
}

async function countCpuUnion(ctx: Context, cpus: readonly number[]): Promise<number> {
  const bits = new Float32Array(MAX_CPUS);
  for (const cpu of cpus) bits[cpu] = 1;
  using union = fromArray(ctx, bits, [MAX_CPUS]);
  ctx.world.allReduce(union, "max").wait();
  return (await union.read()).reduce((sum, bit) => sum + bit, 0);
}

/** Returns the CPUs that this process may run on; none if the system does not report them. */
function readAllowedCpus(): readonly number[] {
  try {
    const list = /^Cpus_allowed_list:\s*(.*)$/m.exec(readFileSync("/proc/self/status", "utf8"))?.[1] ?? "";
    return parseCpuList(list).filter((cpu) => cpu < MAX_CPUS);
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
