// Metadata of a checkpoint file: JSON under the key "mosaic".
import { formatValue, OptionError } from "@mosaic/core";
import type { OptimizerState } from "../optimizers/optimizer.ts";
import { FileError } from "../safetensors/format.ts";
import { readSafetensorsMetadata } from "../safetensors/read.ts";

/** Metadata of a checkpoint. JSON preserves numbers bit for bit. */
export interface StateMetadata {
  readonly version: 1;
  readonly seed: number;
  readonly randomStream: number;
  readonly optimizer: Pick<OptimizerState, "kind" | "numbers"> | null;
  readonly data: unknown;
  /**
   * For copies on several hosts: the ID of the training run, the same for all its checkpoints, also after it was
   * resumed.
   */
  readonly trainingId?: string;
}

/** Parses the metadata of a checkpoint. Throws a FileError if the file is not a checkpoint. */
export function parseStateMetadata(path: string, metadata: ReadonlyMap<string, string>): StateMetadata {
  const stateMetadata = tryParseJson(metadata.get("mosaic"));
  if (stateMetadata?.version === 1) return stateMetadata as StateMetadata;
  throw new FileError({
    where: path,
    expected: "a checkpoint, version 1",
    received: stateMetadata
      ? `version ${formatValue(stateMetadata.version)}`
      : "a safetensors file without training state",
    remedy: "to load weights only, use model.loadStateDict((await readSafetensors(path)).tensors)",
  });
}

function tryParseJson(text: string | undefined): Partial<StateMetadata> | undefined {
  try {
    return text === undefined ? undefined : (JSON.parse(text) as Partial<StateMetadata>);
  } catch {
    return undefined;
  }
}

/** Returns the number of steps of the optimizer; 0 without an optimizer. */
export function getStepCount({ optimizer }: StateMetadata): number {
  return optimizer?.numbers.steps ?? 0;
}

/** State of the file at the path of a checkpoint. */
export type CheckpointFile =
  | { readonly kind: "complete"; readonly steps: number; readonly trainingId: string | null; readonly bytes: number }
  | { readonly kind: "damaged"; readonly reason: string }
  | { readonly kind: "absent" };

/**
 * Inspects the file at the path of a checkpoint. Reads only the header. Throws the system's error for a file that
 * cannot be read.
 */
export async function inspectCheckpoint(path: string): Promise<CheckpointFile> {
  try {
    const { metadata, bytes } = await readSafetensorsMetadata(path);
    const state = parseStateMetadata(path, metadata);
    return { kind: "complete", steps: getStepCount(state), trainingId: state.trainingId ?? null, bytes };
  } catch (error) {
    if (error instanceof FileError) return { kind: "damaged", reason: error.message };
    if (["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "")) return { kind: "absent" };
    throw error;
  }
}

/**
 * Throws an OptionError unless JSON preserves the value. Properties that are undefined are allowed and may be dropped.
 */
export function checkJsonValue(where: string, value: unknown, ancestors: readonly unknown[] = []): void {
  const fail = (received: string): never => {
    throw new OptionError({
      where,
      expected: "a JSON value: null, a boolean, a finite number, a string, an array or a plain object",
      received,
      remedy: "convert or remove the value",
    });
  };
  if (value === null || typeof value === "boolean" || typeof value === "string") return;
  if (typeof value === "number" && Number.isFinite(value)) return;
  if (typeof value !== "object") return fail(typeof value === "function" ? "a function" : String(value));
  if (ancestors.includes(value)) return fail("a circular reference");
  const path = [...ancestors, value];
  const [symbolKey] = Object.getOwnPropertySymbols(value);
  if (symbolKey !== undefined) return fail(`an object with the key ${String(symbolKey)}`);
  if (Array.isArray(value)) {
    const extraKey = Object.keys(value).find((name) => !/^\d+$/.test(name));
    if (extraKey !== undefined) return fail(`an array with the key "${extraKey}"`);
    for (let i = 0; i < value.length; i++) checkJsonValue(`${where}[${i}]`, value[i], path);
    return;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  const isPlainObject = prototype === null || Object.getPrototypeOf(prototype) === null;
  if (!isPlainObject) return fail(`a ${value.constructor.name}`);
  for (const [name, nestedValue] of Object.entries(value)) {
    if (nestedValue !== undefined) checkJsonValue(`${where}.${name}`, nestedValue, path);
  }
}
