import {
  type AttentionNumbers,
  getReference,
  runLocalAttention,
  checkClose,
  magnitude,
  type Trial,
} from "@mosaic/conformance";
import { contiguous, type Device, type DType, masks } from "@mosaic/core";

/** Creates a trial of causal attention, by default with more rows and keys than one block owns, and grouped heads. */
export function createTrial(headDim: number, dtype: DType, lengths: readonly [number, number] = [140, 150]): Trial {
  const [queries, keys] = lengths;
  return {
    name: `${dtype}, heads of ${headDim}`,
    mesh: { c: 1 },
    axes: ["c"],
    batch: 1,
    numHeads: 2,
    numKvHeads: 1,
    headDim,
    dtype,
    scale: 1 / Math.sqrt(headDim),
    mask: masks.causal().slices(queries, keys),
    maskMod: (q, k) => k <= q + keys - queries,
    queries: { length: queries, placement: contiguous() },
    keys: { length: keys, placement: contiguous() },
    seed: headDim,
  };
}

/** Every head size that kernels are compiled for, and smaller ones; 20 and 37 are not multiples of 16 bytes. */
export const trials: readonly Trial[] = [20, 32, 37, 64, 80, 128, 192, 256].flatMap((headDim) =>
  (["bfloat16", "float16"] as const).map((dtype) => createTrial(headDim, dtype)),
);

/** Checks forward and backward on the device against float64. */
export async function checkTrial(device: Device, trial: Trial): Promise<void> {
  const results = await runLocalAttention(device, trial);
  const expected = getReference(trial);
  // Probabilities and dS are rounded to the dtype before they are used in products.
  const tolerance = trial.dtype === "bfloat16" ? 2 ** -6 : 2 ** -9;
  for (const name of ["out", "lse", "dq", "dk", "dv"] as const satisfies (keyof AttentionNumbers)[]) {
    checkClose(results[name], expected[name], tolerance * (1 + magnitude(expected[name])), name);
  }
}
