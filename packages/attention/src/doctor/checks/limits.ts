import { type Check, type Finding, note, ok } from "../finding.ts";
import { rdmaDevices } from "../rdma.ts";
import type { System } from "../system.ts";

const FEW_FILES = 4096;

export const limits: Check = {
  name: "limits",
  run(system) {
    const files = limitOf(system, "Max open files");
    const locked = limitOf(system, "Max locked memory");
    if (files === undefined || locked === undefined) return [];
    const findings: Finding[] = [ok(`${inWords(files)} open files, ${inWords(locked)} bytes of locked memory`)];
    if (files < FEW_FILES) findings.push(note("many ranks may run out of open files", `ulimit -n ${FEW_FILES}`));
    if (rdmaDevices(system).length > 0 && locked !== Number.POSITIVE_INFINITY) {
      findings.push(note("RDMA locks the memory it sends from, and may not lock enough", "ulimit -l unlimited"));
    }
    return findings;
  },
};

/** The soft limit of that name. */
function limitOf({ read }: System, name: string): number | undefined {
  const found = new RegExp(`^${name}\\s+(\\S+)`, "m").exec(read("/proc/self/limits") ?? "")?.[1];
  if (found === undefined) return undefined;
  return found === "unlimited" ? Number.POSITIVE_INFINITY : Number(found);
}

const inWords = (limit: number): string => (limit === Number.POSITIVE_INFINITY ? "unlimited" : String(limit));
