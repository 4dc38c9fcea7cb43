import { memoryLimit } from "../cgroup.ts";
import { type Check, gigabytes, note, ok } from "../finding.ts";

const LITTLE = 2e9;

export const memory: Check = {
  name: "memory",
  run(system) {
    const { total, free } = system.memory;
    const limit = memoryLimit(system);
    const limited = limit !== undefined && limit < total;
    const text = `${gigabytes(total)}, ${gigabytes(free)} free${limited ? `, of which this control group may use ${gigabytes(limit)}` : ""}`;
    if (Math.min(total, limit ?? total) >= LITTLE) return [ok(text)];
    return [note(text, "little for more than trying things out: give the container or the job more memory")];
  },
};
