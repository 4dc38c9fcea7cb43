import type { DType } from "../dtype.ts";
import { MosaicError } from "../errors.ts";
import { checkOptionNames } from "../options.ts";
import { formatShape, type Shape, sameShape, sizeOf } from "../shape.ts";
import { Tensor } from "../tensor.ts";

/** A tensor's values on the host, row-major: what a file holds. */
export interface HostTensor {
  readonly dtype: DType;
  readonly shape: Shape;
  readonly values: Float32Array;
}

/** Values by name: of a module's `stateDict`, or of a file. */
export type StateDict = ReadonlyMap<string, Tensor | HostTensor>;

/** How strictly names and dtypes are matched; shapes always must agree. */
export interface LoadOptions {
  /** Every parameter must be there, and nothing else. Default true. */
  readonly strict?: boolean;
  /** Convert dtypes that differ instead of refusing them. Default false. */
  readonly cast?: boolean;
  /** Check everything, and change nothing. Default false. */
  readonly dryRun?: boolean;
}

/** Names that did not match; both are empty after a strict load. */
export interface LoadReport {
  readonly missing: readonly string[];
  readonly unexpected: readonly string[];
}

/** A state dict that does not fit; nothing was changed. */
export class StateError extends MosaicError {}

/** Copies values into tensors of the same names: all of them, or, if anything does not fit, none. */
export function loadState(
  where: string,
  targets: ReadonlyMap<string, Tensor>,
  state: StateDict,
  options: LoadOptions = {},
): LoadReport {
  checkOptionNames(where, options, ["strict", "cast", "dryRun"]);
  const { strict = true, dryRun = false } = options;
  const missing = [...targets.keys()].filter((name) => !state.has(name));
  const unexpected = [...state.keys()].filter((name) => !targets.has(name));
  const misfits = [...targets].flatMap(([name, target]) => misfit(name, { target, source: state.get(name) }, options));
  const faults = [
    ...(strict && missing.length > 0 ? [`missing ${listed(missing)}`] : []),
    ...(strict && unexpected.length > 0 ? [`unexpected ${listed(unexpected)}`] : []),
    ...misfits,
  ];
  if (faults.length > 0) {
    throw new StateError({
      where,
      expected: `the state of this model, ${targets.size} tensors`,
      received: faults.join("; "),
      remedy: "load what the same model saved, or rename its entries; nothing was changed",
    });
  }
  for (const [name, target] of dryRun ? [] : targets) {
    const source = state.get(name);
    if (source instanceof Tensor) target.device.kernels.copy(target, source);
    else if (source) target.device.write(target, source.values);
  }
  return { missing, unexpected };
}

function misfit(
  name: string,
  { target, source }: { target: Tensor; source: Tensor | HostTensor | undefined },
  { cast = false }: LoadOptions,
): string[] {
  if (!source) return [];
  if (target.isDisposed || (source instanceof Tensor && source.isDisposed)) {
    return [`"${name}" disposed${target.isDisposed ? " in this model" : ""}`];
  }
  if (source instanceof Tensor && source.device !== target.device) {
    const { type, index } = source.device;
    return [`"${name}" on ${type}:${index}, another device: read() it, and give its values`];
  }
  if (!sameShape(source.shape, target.shape)) {
    return [`"${name}" ${formatShape(source.shape)} where ${formatShape(target.shape)} is wanted`];
  }
  if (!(source instanceof Tensor) && source.values.length !== sizeOf(source.shape)) {
    return [`"${name}" ${formatShape(source.shape)} with ${source.values.length} values`];
  }
  if (source.dtype === target.dtype || cast) return [];
  return [`"${name}" ${source.dtype} where ${target.dtype} is wanted (cast: true converts)`];
}

/** The first few, in quotes. */
function listed(names: readonly string[]): string {
  const shown = names.slice(0, 8).map((name) => `"${name}"`);
  const more = names.length - shown.length;
  return `${shown.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
}
