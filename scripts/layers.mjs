// Who may import whom, as data. `docs/decisions/0005-layers.md` states why.

/**
 * Bottom up. A package may import packages of lower layers only: never upward, never sideways.
 * Above them all stand the private programs: `apps/*` and the benchmarks.
 * A pattern is a directory of `packages/`; `*` stands for any ending.
 */
export const LAYERS = [
  ["core"],
  ["runtime"],
  ["kernels-*", "collectives-*"],
  ["backend-*", "nn", "planner"],
  ["strategies", "meta-attention", "models"],
  ["attention"],
];

/** Beside the layers: the suites import core and runtime, launcher and create import nothing; only tests and programs import either. */
export const INDEPENDENT_PACKAGES = { conformance: ["core", "runtime"], create: [], launcher: [] };

/** Independent packages that the umbrella may import: it offers the suites under a subpath, and its doctor uses the job's store. */
export const RE_EXPORTED_PACKAGES = { attention: ["conformance", "launcher"] };

/** The directory of `apps/` that holds what programs share: all of them may import it. */
export const SHARED_PROGRAM_DIRECTORY = "program";

/** Packages that another one starts as a process: it depends on them, and imports nothing of theirs. */
export const PROCESS_DEPENDENCIES = { runtime: ["launcher"] };

/**
 * Interfaces that refer to each other: a device makes tensors, a tensor lies on a device. Among the files of one
 * cycle, and only there, type-only imports may go round; imports of values never.
 */
export const TYPE_CYCLES = {
  core: [
    ["src/device.ts", "src/kernels/kernels.ts", "src/tensor.ts", "src/attention/tile.ts"],
    ["src/tensor.ts", "src/views.ts", "src/autograd/node.ts", "src/autograd/backward.ts"],
    ["src/context.ts", "src/attention/backend.ts"],
  ],
};

/** The layer of a package directory's name, or undefined if it has none. */
export function findLayer(name) {
  const layer = LAYERS.findIndex((patterns) => patterns.some((pattern) => matches(pattern, name)));
  return layer < 0 ? undefined : layer;
}

function matches(pattern, name) {
  return pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern;
}
