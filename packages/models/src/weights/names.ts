import type { Shape } from "@mosaic/core";
import type { ModelConfig } from "../config/config.ts";

// The weights of a folder with Hugging Face's names, and their locations in the parameters of a model: qkv_proj
// concatenates q_proj, k_proj and v_proj.

export const EMBEDDING_NAME = "model.embed_tokens.weight";
export const HEAD_NAME = "lm_head.weight";

/** A weight of a folder, stored in rows [row, row + shape[0]) of a parameter. */
export interface Weight {
  readonly name: string;
  readonly shape: Shape;
  readonly parameter: string;
  readonly row: number;
}

/** Creates a weight that is a whole parameter of the same name. */
const createFullWeight = (name: string, ...shape: number[]): Weight => ({ name, shape, parameter: name, row: 0 });

/** Lists all weights of a model, in the order of its parameters. */
export function listWeights(config: ModelConfig): readonly Weight[] {
  const { vocabSize, hiddenSize, isTied, layers } = config;
  return [
    createFullWeight(EMBEDDING_NAME, vocabSize, hiddenSize),
    ...layers.flatMap((_, layer) => listLayerWeights(config, `model.layers.${layer}`)),
    createFullWeight("model.norm.weight", hiddenSize),
    ...(isTied ? [] : [createFullWeight(HEAD_NAME, vocabSize, hiddenSize)]),
  ];
}

function listLayerWeights(config: ModelConfig, path: string): Weight[] {
  const { hiddenSize, intermediateSize, mlpBias, hasPostNorms } = config;
  const norms = ["input_layernorm", "post_attention_layernorm"];
  const gemmaNorms = ["pre_feedforward_layernorm", "post_feedforward_layernorm"];
  const listMlpWeights = (name: string, rows: number, columns: number): Weight[] =>
    listLinearWeights(`${path}.mlp.${name}`, [rows, columns], mlpBias);
  return [
    ...listAttentionWeights(config, `${path}.self_attn`),
    ...listMlpWeights("gate_proj", intermediateSize, hiddenSize),
    ...listMlpWeights("up_proj", intermediateSize, hiddenSize),
    ...listMlpWeights("down_proj", hiddenSize, intermediateSize),
    ...[...norms, ...(hasPostNorms ? gemmaNorms : [])].map((name) =>
      createFullWeight(`${path}.${name}.weight`, hiddenSize),
    ),
  ];
}

function listLinearWeights(path: string, [rows, columns]: readonly [number, number], bias: boolean): Weight[] {
  return [createFullWeight(`${path}.weight`, rows, columns), ...(bias ? [createFullWeight(`${path}.bias`, rows)] : [])];
}

function listAttentionWeights(config: ModelConfig, path: string): Weight[] {
  const { hiddenSize, numHeads, numKvHeads, headDim, qkvBias, outBias, hasHeadNorms } = config;
  const [q, kv] = [numHeads * headDim, numKvHeads * headDim];
  const projections = [
    { name: "q_proj", rows: q, row: 0 },
    { name: "k_proj", rows: kv, row: q },
    { name: "v_proj", rows: kv, row: q + kv },
  ];
  const listQkvWeights = (kind: string, ...columns: number[]): Weight[] =>
    projections.map(({ name, rows, row }) => ({
      name: `${path}.${name}.${kind}`,
      shape: [rows, ...columns],
      parameter: `${path}.qkv_proj.${kind}`,
      row,
    }));
  const outWeights = listLinearWeights(`${path}.o_proj`, [hiddenSize, q], outBias);
  return [
    ...listQkvWeights("weight", hiddenSize),
    ...(qkvBias ? listQkvWeights("bias") : []),
    ...outWeights.map((weight) => ({ ...weight, parameter: weight.name.replace(".o_proj.", ".out_proj.") })),
    ...(hasHeadNorms ? ["q_norm", "k_norm"].map((name) => createFullWeight(`${path}.${name}.weight`, headDim)) : []),
  ];
}
