import { type Check, type Finding, note, ok, problem, explained } from "../finding.ts";
import type { System } from "../system.ts";

const UMBRELLA = "@mosaic/attention";
const ALWAYS = [
  ...["core", "kernels-cpu", "collectives-local", "backend-ring", "backend-mesh2d", "backend-ulysses"],
  ...["planner", "strategies", "meta-attention", "nn"],
].map((name) => `@mosaic/${name}`);
const OPTIONAL = ["launcher", "kernels-cuda", "collectives-nccl"].map((name) => `@mosaic/${name}`);

/** What is installed, and whether the parts that every machine must run do run. */
export const packages: Check = {
  name: "packages",
  async run(system) {
    const version = system.version(UMBRELLA);
    const installed = OPTIONAL.filter((name) => system.version(name) !== undefined);
    return [
      ok([`${UMBRELLA} ${version ?? "of unknown version"}`, ...installed.map((name) => `with ${name}`)].join(", ")),
      ...versionFindings(system, [...ALWAYS, ...installed], version),
      ...(await trial(system)),
    ];
  },
};

function versionFindings(system: System, names: readonly string[], wanted: string | undefined): readonly Finding[] {
  return names.flatMap((name) => {
    const version = system.version(name);
    if (version === undefined) return [problem(`${name} is missing`, `npm install ${name}@${wanted ?? "latest"}`)];
    if (version === wanted) return [];
    return [problem(`${name} is of version ${version}`, `npm install ${name}@${wanted}: all of @mosaic goes together`)];
  });
}

/** Two ranks of one process, on the CPU: the addons of the device and of the collectives. */
async function trial(system: System): Promise<readonly Finding[]> {
  const found = await system.ask("ranks");
  if ("error" in found) return [problem(...explained(found.error))];
  if (found.value !== 12) return [problem(`two ranks on the CPU computed ${found.value}, not 12`, "reinstall @mosaic")];
  const missing = system.version("@mosaic/launcher") === undefined;
  return [
    ok("two ranks computed on the CPU and added up over shared memory"),
    ...(missing ? [note("programs of several processes need mosaic-run", "npm install @mosaic/launcher")] : []),
  ];
}
