// Metadata of a checkpoint file: JSON under the key "mosaic".
import { formatValue } from "@mosaic/core";
import type { OptimizerState } from "../optimizers/optimizer.ts";
import { FileError } from "../safetensors/format.ts";
import { isMissing, openFile, readHeader, type ReadableFile } from "../safetensors/read.ts";

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
export function parseStateMetadata(where: string, metadata: ReadonlyMap<string, string>): StateMetadata {
  const stateMetadata = tryParseJson(metadata.get("mosaic"));
  if (stateMetadata?.version === 1) return stateMetadata as StateMetadata;
  throw new FileError({
    where,
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
 * Inspects the file at the path of a checkpoint. Reads only the header. Throws a FileError for a file that cannot be
 * opened, and for a directory.
 */
export async function inspectCheckpoint(where: string, path: string): Promise<CheckpointFile> {
  let file: ReadableFile;
  try {
    file = await openFile(where, path);
  } catch (error) {
    if (isMissing((error as Error).cause)) return { kind: "absent" };
    throw error;
  }
  try {
    const { header, bytes } = await readHeader(path, file);
    const state = parseStateMetadata(path, header.metadata);
    return { kind: "complete", steps: getStepCount(state), trainingId: state.trainingId ?? null, bytes };
  } catch (error) {
    if (error instanceof FileError) return { kind: "damaged", reason: error.message };
    throw error;
  } finally {
    await file.close();
  }
}
