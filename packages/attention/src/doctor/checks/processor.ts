import { cpuLimit } from "../cgroup.ts";
import { type Check, note, ok } from "../finding.ts";

/** What the kernels' speed depends on; whether they run at all, `packages` says. */
export const processor: Check = {
  name: "processor",
  async run(system) {
    const model = /^model name\s*:\s*(.*)$/m.exec(system.read("/proc/cpuinfo") ?? "")?.[1] ?? "unknown model";
    const found = await system.ask("cpu");
    const kernels = "value" in found ? `, kernels for ${found.value.isa}` : "";
    const findings = [ok(`${model}, ${system.cores} ${system.cores === 1 ? "core" : "cores"}${kernels}`)];
    if ("value" in found && found.value.isa === "scalar") {
      findings.push(
        note("no AVX2: attention runs many times slower than it could", "use a processor from 2015 or newer"),
      );
    }
    const limit = cpuLimit(system);
    if (limit !== undefined && limit < system.cores) {
      const threads = Math.max(1, Math.floor(limit));
      findings.push(
        note(
          `this container gets the time of ${limit} processors only`,
          `set MOSAIC_THREADS=${threads}, or raise its limit`,
        ),
      );
    }
    return findings;
  },
};
