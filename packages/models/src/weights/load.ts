import type { Context, Module, Tensor } from "@mosaic/core";
import { numel } from "@mosaic/core";
import type { SafetensorsReader } from "@mosaic/nn";
import type { Weight } from "./names.ts";
import { CHUNK_ELEMENTS, type OpenShards } from "./shards.ts";

/**
 * Reads the weights of a folder into the parameters of a model, a range at a time. Any float dtype is converted to that
 * of the parameter.
 */
export async function loadWeights(ctx: Context, model: Module, { weights, fileByTensor }: OpenShards): Promise<void> {
  const parameters = new Map(model.namedParameters());
  for (const weight of weights) {
    await loadWeight(ctx, parameters.get(weight.parameter)!, { weight, file: fileByTensor.get(weight.name)! });
  }
}

async function loadWeight(
  ctx: Context,
  parameter: Tensor,
  { weight, file }: { readonly weight: Weight; readonly file: SafetensorsReader },
): Promise<void> {
  const { name, shape, row } = weight;
  const start = parameter.offset + row * numel(shape.slice(1));
  const size = numel(shape);
  for (let chunkStart = 0; chunkStart < size; chunkStart += CHUNK_ELEMENTS) {
    const chunkEnd = Math.min(size, chunkStart + CHUNK_ELEMENTS);
    const values = await file.readRange(name, chunkStart, chunkEnd);
    using chunkView = parameter.view({ shape: [chunkEnd - chunkStart], strides: [1], offset: start + chunkStart });
    ctx.device.write(chunkView, values);
    // The device keeps a copy of the values until they are written.
    await ctx.device.stream.synchronize();
  }
}
