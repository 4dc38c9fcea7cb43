import { fileURLToPath } from "node:url";
import type { Context } from "@mosaic/attention";
import type { HostTensor } from "@mosaic/attention/core";
import { readSafetensors, writeSafetensors } from "@mosaic/attention/nn";
import { defaultOptions, TabularModel, type TabularOptions } from "./model.ts";

/** Path of the weights of this package, which `train.ts` produced. */
export const defaultWeightsPath: string = fileURLToPath(new URL("../weights.safetensors", import.meta.url));

/** Loads a model with the weights of a file. */
export async function loadModel(
  ctx: Context,
  path: string = defaultWeightsPath,
  options: TabularOptions = defaultOptions,
): Promise<TabularModel> {
  const model = new TabularModel(ctx, options);
  const { tensors } = await readSafetensors(path);
  model.loadStateDict(tensors, { cast: true });
  return model;
}

/** Writes a model's weights in bfloat16, which halves the size. The rounding hardly changes predictions. */
export async function saveModel(model: TabularModel, path: string): Promise<void> {
  const bfloat16Tensors = new Map<string, HostTensor>();
  for (const [name, tensor] of model.stateDict()) {
    bfloat16Tensors.set(name, { dtype: "bfloat16", shape: tensor.shape, values: await tensor.read() });
  }
  await writeSafetensors(path, bfloat16Tensors);
}
