import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { readSafetensors } from "@mosaic/nn";

// Output of make.py: configs and shapes of weights in transformers, and results computed by PyTorch.

export interface ReferenceModel {
  /** config.json as written by save_pretrained. */
  readonly config: Readonly<Record<string, unknown>>;
  /** The shape of each weight of the state dict. */
  readonly shapes: Readonly<Record<string, readonly number[]>>;
  /**
   * The largest errors of transformers' logits against float64: in float32, in bfloat16, and in float32 during
   * generation.
   */
  readonly errors: { readonly float32: number; readonly bfloat16: number; readonly generated?: number };
}

export const resolvePath = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

export const models = JSON.parse(await readFile(resolvePath("models.json"), "utf8")) as Readonly<
  Record<string, ReferenceModel>
>;

const { tensors } = await readSafetensors(resolvePath("models.safetensors"));

/** Returns the float64 values of a tensor of models.safetensors. */
export function reference(name: string): Float64Array {
  const { bytes, format } = tensors.get(name)!;
  if (format !== "F64") throw new Error(`${name} is ${format}`);
  return new Float64Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 8);
}

/** [batch,length] token ids, and the vocabulary's size. */
export const tokens = { values: Array.from(reference("tokens")), batch: 2, length: 21, vocabSize: 64 };
