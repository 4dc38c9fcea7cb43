import { type AttentionBackend, defineOptions, expectValue, option, type OptionsOf } from "@mosaic/core";
import type { MakeWorld } from "./world.ts";

// Common options of suites. Suites check options when they are called, because a case that failed later would not name
// them.

const MAKE_WORLD_DESCRIPTION = "a function (size, options) that returns a world";

/** Opens the worlds that the cases run on. */
export const makeWorldOption = option.custom(MAKE_WORLD_DESCRIPTION, option.isFunction<MakeWorld>);

/** Throws an OptionError unless `makeWorld` is a function. */
export function checkMakeWorld(where: string, makeWorld: unknown): asserts makeWorld is MakeWorld {
  expectValue(`${where}: makeWorld`, typeof makeWorld === "function", MAKE_WORLD_DESCRIPTION, makeWorld);
}

/** Makes the backend along an axis. */
export const makeBackendOption = option.custom(
  "a function (axis) that returns a backend",
  option.isFunction<(axis: string) => AttentionBackend>,
);

/**
 * Returns the backend that `make` creates along an axis.
 *
 * @throws OptionError if `make` does not return a backend.
 */
export function makeBackend(where: string, make: (axis: string) => AttentionBackend, axis: string): AttentionBackend {
  const backend: unknown = make(axis);
  const backendOption = option.backend();
  expectValue(`${where}: backend("${axis}")`, backendOption.accepts(backend), backendOption.expected, backend);
  return backend as AttentionBackend;
}

/** Declares the fields of an `Arrangement`. */
export const arrangementOptions = defineOptions("Arrangement", {
  /** Lengths of the axes by name. */
  mesh: option.meshShape(),
  /** The axes that the sequence is sharded along. */
  axes: option.array(option.string()),
  /** The backend for these axes. */
  backend: option.backend(),
});
/** Ranks on which a backend is tested: the mesh, the axes along which the sequence is sharded, and the backend. */
export type Arrangement = OptionsOf<typeof arrangementOptions>;

export const arrangementOption = option.nested(arrangementOptions, {
  expected: "an Arrangement, such as { mesh: { sp: 2 }, axes: ['sp'], backend: ring() }",
});
/** Arrangements to test: usually several world sizes, including odd ones, and some nested backends. */
export const arrangementsOption = option.array(arrangementOption);

/** Dtypes to test. */
export const dtypesOption = option.array(option.dtype(), { default: ["float32", "bfloat16"] });

/** Numbers of ranks. */
export const worldSizesOption = option.array(option.integer({ min: 1 }), { optional: true });
