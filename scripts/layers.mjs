// Which packages may import which, as data. `docs/decisions/0005-layers.md` gives the reasons.

/**
 * Layers, bottom up. A package may import packages of lower layers only: never upward, never sideways. The private
 * programs (`apps/*` and the benchmarks) are above all layers. A pattern is a directory of `packages/`, in which `*`
 * matches any ending.
 */
export const LAYERS = [
  ["core"],
  ["runtime"],
  ["kernels-*", "collectives-*"],
  ["backend-*", "nn", "planner"],
  ["strategies", "meta-attention", "models"],
  ["attention"],
];

/**
 * Packages outside the layers, with their allowed imports: core and runtime for the suites, none for launcher and
 * create. Only tests and programs may import these packages.
 */
export const INDEPENDENT_PACKAGES = { conformance: ["core", "runtime"], create: [], launcher: [] };

/**
 * Independent packages that the umbrella may import. It exports the suites under a subpath, and its doctor uses the
 * job's store.
 */
export const RE_EXPORTED_PACKAGES = { attention: ["conformance", "launcher"] };

/** Directory of `apps/` with the code that programs share. All programs may import it. */
export const SHARED_PROGRAM_DIRECTORY = "program";

/** Packages that another package starts as a process. It depends on them, but imports nothing from them. */
export const PROCESS_DEPENDENCIES = { runtime: ["launcher"] };

/**
 * Interfaces that refer to each other: a device creates tensors, a tensor has a device. Type-only imports may be cyclic
 * among the files of one entry, and only there. Imports of values may never be cyclic.
 */
export const TYPE_CYCLES = {
  core: [
    ["src/device.ts", "src/kernels/kernels.ts", "src/tensor.ts", "src/attention/tile.ts"],
    [
      "src/tensor.ts",
      "src/views.ts",
      "src/autograd/node.ts",
      "src/autograd/backward.ts",
      "src/autograd/unwritten-ranges.ts",
    ],
    ["src/context.ts", "src/attention/backend.ts"],
    ["src/tensor.ts", "src/placement/placement.ts", "src/mesh.ts", "src/collectives/process-group.ts"],
  ],
};

/** Returns the layer of a package directory's name, or undefined if it has none. */
export function findLayer(name) {
  const layer = LAYERS.findIndex((patterns) => patterns.some((pattern) => matches(pattern, name)));
  return layer < 0 ? undefined : layer;
}

function matches(pattern, name) {
  return pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern;
}
