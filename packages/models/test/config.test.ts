import { describe, expect, test } from "vitest";
import { parseConfig } from "../src/index.ts";
import { models } from "./reference/references.ts";

const parse = (json: Readonly<Record<string, unknown>>) => parseConfig("config.json", json);

/** Describes a config without the functions of scalings, which are not equal by identity. */
function describeConfig(json: Readonly<Record<string, unknown>>) {
  const { layers, ...otherFields } = parse(json);
  return {
    ...otherFields,
    layers: layers.map(({ window, rope: { base, scaling } }) => ({
      window,
      base,
      frequencies: scaling?.compute({ headDim: 16, base, sequenceLength: undefined }),
    })),
  };
}

describe("configs written by transformers 4 parse like current ones", () => {
  /** Creates a config as written by transformers 4: with rope_theta and rope_scaling, and without layer types. */
  function createLegacyConfig(
    name: string,
    fields: Readonly<Record<string, unknown>>,
  ): Readonly<Record<string, unknown>> {
    const { rope_parameters: _, layer_types: __, dtype: ___, ...config } = models[name]!.config;
    return { ...config, ...fields };
  }

  test.each([
    [
      "llama3",
      {
        rope_theta: 5e5,
        rope_scaling: {
          rope_type: "llama3",
          factor: 8,
          low_freq_factor: 1,
          high_freq_factor: 4,
          original_max_position_embeddings: 64,
        },
      },
    ],
    ["qwen2", { rope_theta: 1e6, rope_scaling: { type: "yarn", factor: 4, original_max_position_embeddings: 128 } }],
    ["qwen2-window", { rope_theta: 1e4 }],
    ["mistral-full", { rope_theta: 1e6, rope_scaling: null }],
    ["gemma2", { rope_theta: 1e4 }],
    [
      "gemma3",
      {
        rope_theta: 1e6,
        rope_local_base_freq: 1e4,
        rope_scaling: { rope_type: "linear", factor: 8 },
        sliding_window_pattern: 3,
      },
    ],
  ] as const)("%s", (name, fields) => {
    expect(describeConfig(createLegacyConfig(name, { ...fields, torch_dtype: "float32" }))).toEqual(
      describeConfig(models[name]!.config),
    );
  });
});

test("each layer has its sliding window, or null for full attention", () => {
  const listWindows = (name: string) => parse(models[name]!.config).layers.map(({ window }) => window);
  expect(listWindows("mistral")).toEqual([8, 8]);
  expect(listWindows("mistral-full")).toEqual([null, null]);
  expect(listWindows("qwen2")).toEqual([null, null]);
  expect(listWindows("qwen2-window")).toEqual([null, 6]);
  expect(listWindows("gemma2")).toEqual([8, null]);
  expect(listWindows("gemma3")).toEqual([8, 8, null]);
});

test("null turns softcaps off", () => {
  const { attentionSoftcap, logitSoftcap } = parse({
    ...models.gemma2!.config,
    attn_logit_softcapping: null,
    final_logit_softcapping: null,
  });
  expect([attentionSoftcap, logitSoftcap]).toEqual([null, null]);
});

describe("unsupported and invalid fields", () => {
  test.each([
    [{ model_type: "mamba" }, /config.json: model_type: expected one of llama, mistral, .*, received "mamba"/],
    [{ model_type: "gemma3" }, /received "gemma3"; for Gemma 3, only text models/],
    [{ model_type: undefined }, /model_type: expected one of .*, received undefined/],
    [
      { vocab_size: undefined },
      /config.json: vocab_size: expected an integer ≥ 1, received undefined; add the field: this model type requires it/,
    ],
    [{ hidden_size: "48" }, /hidden_size: expected an integer ≥ 1, received "48"; correct the file/],
    [{ hidden_act: "relu" }, /hidden_act: expected one of silu, .*, received "relu"/],
    [{ dtype: "float8" }, /dtype: expected one of float32, bfloat16, float16, received "float8"/],
    [
      { rope_parameters: { rope_type: "longrope" } },
      /rope_type: expected one of default, linear, .*received "longrope"/,
    ],
    [
      { rope_parameters: { rope_type: "linear" } },
      /rope_parameters: factor: expected a number > 0, received undefined/,
    ],
    [{ rope_parameters: { partial_rotary_factor: 0.5 } }, /partial_rotary_factor: expected 1, received 0.5/],
    [{ rope_parameters: [] }, /rope_parameters: expected an object, received \[\]/],
    [{ eos_token_id: "</s>" }, /eos_token_id: expected a token id, an array of token ids, or null, received "<\/s>"/],
    [{ use_bidirectional_attention: true }, /use_bidirectional_attention: expected a causal model, received true/],
    [{ tie_word_embeddings: 1 }, /tie_word_embeddings: expected a boolean, received 1/],
  ] as const)("rejects %o with an error that names the field", (fields, message) => {
    expect(() => parse({ ...models.llama2!.config, ...fields })).toThrow(message);
  });

  test("rejects layer_types that do not have one type per layer", () => {
    const types = { layer_types: ["full_attention"] };
    expect(() => parse({ ...models.gemma2!.config, ...types })).toThrow(
      /layer_types: expected full_attention or sliding_attention for each of 2 layers, received \["full_attention"\]/,
    );
  });
});
