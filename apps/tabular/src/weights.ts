import { fileURLToPath } from "node:url";
import { type Context } from "@mosaic/attention";
import { readSafetensors, writeSafetensors } from "@mosaic/attention/nn";
import { TabularModel, type TabularOptions, usual } from "./model.ts";

/** The weights that this folder ships, made by `train.ts`, twice: from random weights, and to refine. */
export const shipped: string = fileURLToPath(new URL("../weights.safetensors", import.meta.url));

/** A model with the weights of a file. */
export async function loadModel(
  ctx: Context,
  path: string = shipped,
  options: TabularOptions = usual,
): Promise<TabularModel> {
  const model = new TabularModel(ctx, options);
  const { tensors } = await readSafetensors(path);
  model.loadStateDict(tensors);
  return model;
}

export async function saveModel(model: TabularModel, path: string): Promise<void> {
  await writeSafetensors(path, model.stateDict());
}
