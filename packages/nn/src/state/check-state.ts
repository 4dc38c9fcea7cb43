// Compares a checkpoint with the model and the optimizer into which it is to be loaded.
import { type Context, type Device, type Module, StateDictError, type Tensor } from "@mosaic/core";
import type { Optimizer } from "../optimizers/optimizer.ts";
import { toDType, toNumbers } from "../safetensors/read.ts";
import type { SafetensorsReader } from "../safetensors/reader.ts";
import { createMetaTensor } from "../sharding/sharded-state.ts";
import type { StateMetadata } from "./checkpoint-file.ts";

/** The model and the optimizer of a training run. */
export interface TrainingState {
  readonly model: Module;
  readonly optimizer?: Optimizer;
}

/** A checkpoint whose header has been read. */
export interface OpenCheckpoint {
  /** The call and the path, for error messages. */
  readonly where: string;
  readonly file: SafetensorsReader;
  readonly stateMetadata: StateMetadata;
}

/** Throws unless a checkpoint matches the model, the optimizer and the seed. Changes nothing. */
export function checkState(
  ctx: Context,
  { where, file, stateMetadata }: OpenCheckpoint,
  { model, optimizer }: TrainingState,
): void {
  if (stateMetadata.seed !== ctx.seed) {
    throw new StateDictError({
      where,
      expected: `seed ${ctx.seed}, the seed of the context`,
      received: String(stateMetadata.seed),
      remedy: `pass seed: ${stateMetadata.seed} to init`,
    });
  }
  const device = model.parameters()[0]?.device ?? ctx.device;
  const modelTensors = describeTensors({ where, file }, "model.", device);
  // With `cast`, so that the error for other dtypes names a remedy that applies to checkpoints.
  prefixErrors(where, () => model.loadStateDict(modelTensors, { dryRun: true, cast: true }));
  checkDTypes(where, model, modelTensors);
  if (!optimizer) return;
  if (!stateMetadata.optimizer) throw new StateDictError({ where, expected: "an optimizer's state", received: "none" });
  const tensors = describeTensors({ where, file }, "optimizer.", device);
  const state = { ...stateMetadata.optimizer, tensors };
  prefixErrors(where, () => optimizer.loadStateDict(state, { dryRun: true }));
}

/** Runs a check. Adds the call and the path of the checkpoint to its StateDictError. */
function prefixErrors(where: string, check: () => void): void {
  try {
    check();
  } catch (error) {
    if (!(error instanceof StateDictError)) throw error;
    throw new StateDictError({ ...error.details, where: `${where}: ${error.details.where}` }, { cause: error });
  }
}

/** Throws a StateDictError if the dtype of a parameter or a buffer of the model differs from that in a file. */
function checkDTypes(where: string, model: Module, tensors: ReadonlyMap<string, Tensor>): void {
  const entries = [...model.stateDict()].map(([name, { dtype }]) => ({
    name,
    dtype,
    fileDType: tensors.get(name)!.dtype,
  }));
  const mismatches = entries.filter(({ dtype, fileDType }) => dtype !== fileDType);
  const [first] = mismatches;
  if (!first) return;
  const others = mismatches.length > 1 ? ` and ${mismatches.length - 1} more` : "";
  throw new StateDictError({
    where,
    expected: `"${first.name}"${others} with the dtype of the model, ${first.dtype}`,
    received: first.fileDType,
    remedy: `create the model with dtype: "${first.fileDType}"; no tensor was modified`,
  });
}

/**
 * Returns tensors without memory for the tensors of a file whose names start with a prefix, with the prefix removed.
 * Throws a FileError for a dtype that cannot be converted to float32.
 */
function describeTensors(
  { where, file }: Pick<OpenCheckpoint, "where" | "file">,
  prefix: string,
  device: Device,
): Map<string, Tensor> {
  const prefixedTensors = [...file.tensors].filter(([name]) => name.startsWith(prefix));
  return new Map(
    prefixedTensors.map(([name, { format, shape }]) => {
      toNumbers(`${where}, tensor "${name}"`, format, new Uint8Array());
      return [name.slice(prefix.length), createMetaTensor(device, toDType(format), shape)];
    }),
  );
}
