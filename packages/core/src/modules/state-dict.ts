import { formatDevice } from "../device.ts";
import type { DType } from "../storage.ts";
import { formatValue, MosaicError, expectValue } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { formatShape, type Shape, sameShape, numel } from "../shape.ts";
import { isTensor, Tensor } from "../tensor.ts";

/** A tensor's values on the host, row-major, as read from a file. */
export interface HostTensor {
  readonly dtype: DType;
  readonly shape: Shape;
  readonly values: Float32Array;
}

/** Values by name, of a module's `stateDict` or of a file. */
export type StateDict = ReadonlyMap<string, Tensor | HostTensor>;

export const loadOptions = defineOptions("loadState", {
  /** Require exactly the names of the module. Default true. */
  strict: option.boolean({ default: true }),
  /** Convert values with different dtypes instead of throwing. Default false. */
  cast: option.boolean({ default: false }),
  /** Check everything without changing anything. Default false. */
  dryRun: option.boolean({ default: false }),
});
/** Options that control how strictly names and dtypes are matched. Shapes must always match. */
export type LoadOptions = OptionsOf<typeof loadOptions>;

/** Names that did not match; both are empty after a strict load. */
export interface LoadReport {
  readonly missing: readonly string[];
  readonly unexpected: readonly string[];
}

/**
 * Thrown if a state dict, or the state of an optimizer or a checkpoint, does not match. No tensor was changed.
 */
export class StateDictError extends MosaicError {}

/**
 * Copies values into tensors of the same names, as `Module.loadStateDict` does for a module. `where` is the caller's
 * name in errors. Returns the names that did not match, which only `strict: false` allows.
 *
 * @example
 * ```ts
 * import { fromArray, loadState, zeros } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using weight = zeros(device, [2]);
 * const targets = new Map([["weight", weight]]);
 * const state = new Map([["weight", fromArray(device, [1, 2], [2])]]);
 * loadState("load", targets, state); // => { missing: [], unexpected: [] }
 * Array.from(await weight.read()); // => [1, 2]
 * ```
 * @throws StateDictError that lists everything that does not match; then no tensor was changed. OptionError for unknown
 * options.
 */
export function loadState(
  where: string,
  targets: ReadonlyMap<string, Tensor>,
  state: StateDict,
  options?: LoadOptions,
): LoadReport {
  const { strict, cast, dryRun } = loadOptions.parse(options, where);
  const hasTensors = targets instanceof Map && [...targets.values()].every(isTensor);
  expectValue(where, hasTensors, "a Map of tensors by name", targets);
  checkStateDict(where, state);
  const missing = [...targets.keys()].filter((name) => !state.has(name));
  const unexpected = [...state.keys()].filter((name) => !targets.has(name));
  const mismatches = [...targets].flatMap(([name, target]) =>
    describeEntryMismatch(name, { target, source: state.get(name) }, cast),
  );
  const problems = [
    ...(strict && missing.length > 0 ? [`missing ${formatNames(missing)}`] : []),
    ...(strict && unexpected.length > 0 ? [`unexpected ${formatNames(unexpected)}`] : []),
    ...mismatches,
  ];
  if (problems.length > 0) {
    throw new StateDictError({
      where,
      expected: `the ${targets.size} tensors of this module's state dict`,
      received: problems.join("; "),
      remedy: "load the state dict of the same model, or rename its entries; no tensor was modified",
    });
  }
  for (const [name, target] of dryRun ? [] : targets) {
    const source = state.get(name);
    if (source instanceof Tensor) target.device.kernels.copy(target, source);
    else if (source) target.device.write(target, source.values);
  }
  return { missing, unexpected };
}

/** Throws a StateDictError unless a state is a map from names to tensors, on a device or on the host. */
function checkStateDict(where: string, state: unknown): asserts state is StateDict {
  const entries: readonly unknown[] = state instanceof Map ? [...state.values()] : [undefined];
  const invalidIndex = entries.findIndex((value) => !(isTensor(value) || isHostTensor(value)));
  if (invalidIndex < 0) return;
  throw new StateDictError({
    where,
    expected: "a Map from names to tensors or { dtype, shape, values }",
    received:
      state instanceof Map
        ? `${formatValue([...state.keys()][invalidIndex])}: ${formatValue(entries[invalidIndex])}`
        : formatValue(state),
    ...(hasTensorMap(state) && { remedy: "pass its property tensors, which is such a Map" }),
  });
}

/** Returns whether a value has a Map of tensors as a property, as the result of `readSafetensors` does. */
function hasTensorMap(value: unknown): boolean {
  return !(value instanceof Map) && (value as { tensors?: unknown } | null | undefined)?.tensors instanceof Map;
}

function isHostTensor(value: unknown): value is HostTensor {
  const { dtype, shape, values } = (value ?? {}) as Partial<HostTensor>;
  return typeof dtype === "string" && Array.isArray(shape) && ArrayBuffer.isView(values);
}

function describeEntryMismatch(
  name: string,
  { target, source }: { target: Tensor; source: Tensor | HostTensor | undefined },
  cast: boolean,
): string[] {
  if (!source) return [];
  if (target.isDisposed || (source instanceof Tensor && source.isDisposed)) {
    return [`"${name}" is disposed${target.isDisposed ? " in this module" : ""}`];
  }
  if (source instanceof Tensor && source.device !== target.device) {
    return [
      `"${name}" is on ${formatDevice(source.device)}, but its parameter is on ${formatDevice(target.device)}: pass the values that read() returns`,
    ];
  }
  if (!sameShape(source.shape, target.shape)) {
    return [`"${name}" has shape ${formatShape(source.shape)} instead of ${formatShape(target.shape)}`];
  }
  if (!(source instanceof Tensor) && source.values.length !== numel(source.shape)) {
    return [`"${name}" has shape ${formatShape(source.shape)} but ${source.values.length} values`];
  }
  if (source.dtype === target.dtype || cast) return [];
  return [`"${name}" has dtype ${source.dtype} instead of ${target.dtype} (pass cast: true to convert)`];
}

/** Formats the first few names, in quotes. */
function formatNames(names: readonly string[]): string {
  const shownNames = names.slice(0, 8).map((name) => `"${name}"`);
  const numOmittedNames = names.length - shownNames.length;
  return `${shownNames.join(", ")}${numOmittedNames > 0 ? ` and ${numOmittedNames} more` : ""}`;
}
