import * as mosaic from "@mosaic/attention";
import { type Attended, attend } from "./attend.ts";
import { Embedder } from "./embed.ts";
import { readGenome } from "./genome.ts";
import { meter } from "./meter.ts";
import type { Problem } from "./reference.ts";
import type { Settings } from "./settings.ts";

/** The same attention on one device that holds the whole sequence, with every core of the machine, or its first GPU. */
export async function attendAlone(settings: Settings, progress: (share: number) => void): Promise<Attended> {
  await using ctx = await alone(settings);
  const { shape: _, ...single } = { ...settings, ranks: 1, backend: "local" };
  const pieces = { forward: settings.numHeads, backward: settings.backward ? settings.numHeads : 0 };
  return await attend(ctx, single, meter(pieces, progress));
}

/** The whole problem as the device sees it: rounded to its dtype. */
export async function wholeProblem(settings: Settings): Promise<Problem> {
  await using ctx = await alone(settings);
  const { numHeads, tokens, dim, dtype, causal } = settings;
  const host = new Embedder(readGenome(), settings).at(Int32Array.from({ length: tokens }, (_, i) => i));
  const rounded = async (values: Float32Array): Promise<Float32Array> => {
    using tensor = mosaic.fromArray(ctx, values, [values.length], dtype);
    return await tensor.read();
  };
  return {
    q: await rounded(host.q),
    k: await rounded(host.k),
    v: await rounded(host.v),
    numHeads,
    tokens,
    dim,
    causal,
  };
}

function alone({ device }: Settings): Promise<mosaic.Context> {
  return mosaic.init({ rank: 0, worldSize: 1, ...(device && { device }) });
}
