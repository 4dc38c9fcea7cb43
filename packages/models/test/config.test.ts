import { type RopeScaling, ropeScaling } from "@mosaic/nn";
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

describe("missing fields have the defaults of transformers", () => {
  const sizes = {
    vocab_size: 64,
    hidden_size: 64,
    intermediate_size: 80,
    num_hidden_layers: 30,
    num_attention_heads: 8,
  };
  const describeDefaults = (fields: Readonly<Record<string, unknown>>) => {
    const {
      layers,
      modelType: _,
      vocabSize: __,
      hiddenSize: ___,
      intermediateSize: ____,
      ...config
    } = parse({ ...sizes, ...fields });
    const fullLayers = layers.flatMap(({ window }, layer) => (window === null ? [layer] : []));
    const bases = [...new Set(layers.map(({ rope: { base } }) => base))];
    return {
      ...config,
      windows: [...new Set(layers.map(({ window }) => window))],
      numFullLayers: fullLayers.length,
      bases,
    };
  };
  const common = {
    numHeads: 8,
    activation: "silu",
    normEpsilon: 1e-6,
    normWeightOffset: 0,
    hasPostNorms: false,
    hasHeadNorms: false,
    qkvBias: false,
    outBias: false,
    mlpBias: false,
    isTied: false,
    scalesEmbeddings: false,
    attentionSoftcap: null,
    logitSoftcap: null,
    dtype: "float32",
    windows: [null],
    numFullLayers: 30,
    bases: [10_000],
  };
  // The default of 32 KV heads does not divide 8.
  const sizesOfQwen = { hidden_size: 128, num_attention_heads: 64 };
  const qwenHeads = { numHeads: 64, numKvHeads: 32 };
  const gemma = {
    ...common,
    numKvHeads: 4,
    headDim: 256,
    attentionScale: 1 / 16,
    activation: "geluTanh",
    normWeightOffset: 1,
    hasPostNorms: true,
    isTied: true,
    scalesEmbeddings: true,
    windows: [4096, null],
    eosTokenIds: [1],
  };

  test.each([
    ["llama", { ...common, numKvHeads: 8, headDim: 8, maxLength: 2048, attentionScale: 8 ** -0.5, eosTokenIds: [2] }],
    [
      "mistral",
      {
        ...{ ...common, numKvHeads: 8, headDim: 8, maxLength: 131_072, attentionScale: 8 ** -0.5, eosTokenIds: [2] },
        ...{ windows: [4096], numFullLayers: 0 },
      },
    ],
    [
      "qwen2",
      {
        ...{ ...common, ...qwenHeads, headDim: 2, maxLength: 32_768, attentionScale: 2 ** -0.5, eosTokenIds: [] },
        qkvBias: true,
      },
      sizesOfQwen,
    ],
    [
      "qwen3",
      {
        ...{ ...common, ...qwenHeads, headDim: 128, maxLength: 32_768, attentionScale: 128 ** -0.5, eosTokenIds: [] },
        hasHeadNorms: true,
      },
      sizesOfQwen,
    ],
    ["gemma2", { ...gemma, maxLength: 8192, attentionSoftcap: 50, logitSoftcap: 30, numFullLayers: 15 }],
    ["gemma3_text", { ...gemma, maxLength: 131_072, hasHeadNorms: true, numFullLayers: 5, bases: [10_000, 1_000_000] }],
  ] as const)("%s", (model_type, defaults, fields?) => {
    expect(describeDefaults({ model_type, ...fields })).toEqual({ ...defaults, maxBatchLength: defaults.maxLength });
  });

  test("Qwen has a sliding window of 4096 from layer 28 on if use_sliding_window is set, unless it is null", () => {
    const qwen = { ...sizesOfQwen, model_type: "qwen2", use_sliding_window: true };
    expect(describeDefaults(qwen)).toMatchObject({ windows: [null, 4096], numFullLayers: 28 });
    expect(describeDefaults({ ...qwen, sliding_window: null })).toMatchObject({ windows: [null], numFullLayers: 30 });
  });

  test("Mistral has 8 KV heads, whatever the number of heads", () => {
    expect(describeDefaults({ model_type: "mistral", num_attention_heads: 32 }).numKvHeads).toBe(8);
  });

  test.each(["qwen2", "qwen3"])(
    "%s requires the number of KV heads if its default does not divide the heads",
    (model_type) => {
      expect(() => describeDefaults({ model_type })).toThrow(
        "num_key_value_heads: expected a divisor of num_attention_heads, 8, received undefined; " +
          "add the field; its default in transformers, 32, does not divide 8",
      );
    },
  );

  test("null is no number of KV heads of their own, and no end token", () => {
    const fields = { num_attention_heads: 16, num_key_value_heads: null, eos_token_id: null };
    for (const model_type of ["llama", "mistral", "qwen2", "qwen3"])
      expect(describeDefaults({ model_type, ...fields })).toMatchObject({ numKvHeads: 16, eosTokenIds: [] });
  });

  test("Mistral and Qwen 2 have no field for biases", () => {
    const fields = { attention_bias: true, mlp_bias: true };
    expect(describeDefaults({ model_type: "mistral", ...fields })).toMatchObject({
      ...{ qkvBias: false, outBias: false, mlpBias: false },
    });
    expect(describeDefaults({ ...sizesOfQwen, model_type: "qwen2", ...fields })).toMatchObject({
      ...{ qkvBias: true, outBias: false, mlpBias: false },
    });
  });

  test("torch_dtype is the dtype of older configs, and dtype has precedence", () => {
    expect(describeDefaults({ model_type: "llama", torch_dtype: "bfloat16" }).dtype).toBe("bfloat16");
    expect(describeDefaults({ model_type: "llama", torch_dtype: "bfloat16", dtype: "float16" }).dtype).toBe("float16");
  });

  test("Gemma 3 has a softcap of the logits if the field is set", () => {
    const softcaps = { attn_logit_softcapping: 20, final_logit_softcapping: 10 };
    expect(describeDefaults({ model_type: "gemma3_text", ...softcaps })).toMatchObject({
      ...{ attentionSoftcap: null, logitSoftcap: 10 },
    });
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

const llama3Rope = models.llama3!.config.rope_parameters as Readonly<Record<string, unknown>>;

describe("rotary embeddings have the precedence of transformers 5", () => {
  const describeRopes = (name: string, fields: Readonly<Record<string, unknown>>) =>
    describeConfig({ ...models[name]!.config, ...fields }).layers;
  const [yarn, linear] = [
    { rope_type: "yarn", factor: 4, original_max_position_embeddings: 128 },
    { rope_type: "linear", factor: 2 },
  ];

  test("rope_scaling replaces rope_parameters, including its rope_theta", () => {
    const rope_parameters = { rope_type: "default", rope_theta: 5e5 };
    expect(describeRopes("llama2", { rope_parameters, rope_scaling: yarn })).toEqual(
      describeRopes("llama2", { rope_parameters: { ...yarn, rope_theta: 1e4 } }),
    );
    expect(describeRopes("llama2", { rope_parameters, rope_scaling: yarn, rope_theta: 77 })).toEqual(
      describeRopes("llama2", { rope_parameters: { ...yarn, rope_theta: 77 } }),
    );
    expect(describeRopes("llama2", { rope_parameters, rope_scaling: {} })).toEqual(
      describeRopes("llama2", { rope_parameters }),
    );
  });

  test("rope_scaling replaces fields of full attention in Gemma 3", () => {
    const [full_attention, sliding_attention] = [
      { rope_type: "default", rope_theta: 3e5 },
      { rope_type: "default", rope_theta: 2e4 },
    ];
    const rope_parameters = { full_attention, sliding_attention };
    expect(describeRopes("gemma3", { rope_parameters, rope_scaling: linear })).toEqual(
      describeRopes("gemma3", {
        rope_parameters: { full_attention: { ...full_attention, ...linear }, sliding_attention },
      }),
    );
  });

  test.each(["yarn", "llama3"])(
    "original_max_position_embeddings of the config has precedence with %s",
    (rope_type) => {
      const rope_parameters = { ...llama3Rope, rope_type };
      expect(describeRopes("llama3", { rope_parameters, original_max_position_embeddings: 32 })).toEqual(
        describeRopes("llama3", { rope_parameters: { ...rope_parameters, original_max_position_embeddings: 32 } }),
      );
      expect(describeRopes("llama3", { rope_parameters, original_max_position_embeddings: 32 })).not.toEqual(
        describeRopes("llama3", { rope_parameters }),
      );
    },
  );

  test("parameters that do not belong to a layer type are an error in Gemma 3", () => {
    const parseRopeParameters = (rope_parameters: unknown) => parse({ ...models.gemma3!.config, rope_parameters });
    expect(() => parseRopeParameters({ ...linear, rope_theta: 500 })).toThrow(
      /rope_parameters: expected an object with full_attention and sliding_attention, .*, received .*; move/,
    );
    expect(() => parseRopeParameters({ full_attention: 5 })).toThrow(
      /rope_parameters: full_attention: expected an object, received 5/,
    );
  });

  test.each<[object, object]>([
    [{ beta_fast: 8 }, { betaFast: 8 }],
    [{ beta_slow: 2 }, { betaSlow: 2 }],
    [{ truncate: false }, { truncate: false }],
    [{ attention_factor: 1.5 }, { attentionFactor: 1.5 }],
    [
      { mscale: 0.5, mscale_all_dim: 0.25 },
      { mscale: 0.5, mscaleAllDim: 0.25 },
    ],
  ])("yarn with the fields %o is ropeScaling.yarn with the options %o", (fields, options) => {
    const compute = (scaling: RopeScaling) => scaling.compute({ headDim: 64, base: 1e4, sequenceLength: undefined });
    const parseYarn = (rope_parameters: object) =>
      compute(parse({ ...models.llama2!.config, rope_parameters }).layers[0]!.rope.scaling!);
    const expected = compute(ropeScaling.yarn({ factor: 4, originalLength: 128, ...options }));
    expect(parseYarn({ ...yarn, ...fields })).toEqual(expected);
    expect(parseYarn(yarn)).not.toEqual(expected);
  });

  test("yarn requires a factor, for which null is the ratio of the lengths", () => {
    const parseFactor = (factor?: number | null) => {
      const rope_parameters = { rope_type: "yarn", original_max_position_embeddings: 32, factor };
      return describeRopes("llama2", { max_position_embeddings: 128, rope_parameters });
    };
    expect(parseFactor(null)).toEqual(parseFactor(4));
    expect(parseFactor(null)).not.toEqual(parseFactor(2));
    expect(() => parseFactor()).toThrow(/rope_parameters: factor: expected a number ≥ 1, received undefined; add the/);
  });

  test("yarn and dynamic extend the maximum length", () => {
    const getMaxLengths = (fields: Readonly<Record<string, unknown>>) => {
      const { maxLength, maxBatchLength } = parse({ ...models.llama2!.config, ...fields });
      return [maxLength, maxBatchLength];
    };
    expect(getMaxLengths({ max_position_embeddings: 128, rope_parameters: yarn })).toEqual([512, 512]);
    expect(getMaxLengths({ max_position_embeddings: 600, rope_parameters: yarn })).toEqual([600, 600]);
    expect(getMaxLengths({ max_position_embeddings: 128, rope_parameters: linear })).toEqual([128, 128]);
    const dynamic = { rope_type: "dynamic", factor: 2.5 };
    expect(getMaxLengths({ max_position_embeddings: 128, rope_parameters: dynamic })).toEqual([320, 128]);
  });
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
      /rope_parameters: factor: expected a number ≥ 1, received undefined/,
    ],
    [{ rope_parameters: { partial_rotary_factor: 0.5 } }, /partial_rotary_factor: expected 1, received 0.5/],
    [{ partial_rotary_factor: 0.5 }, /config.json: partial_rotary_factor: expected 1, received 0.5/],
    [
      { rope_parameters: { rope_type: "linear", factor: 0.5 } },
      /config.json: rope_parameters: factor: expected a number ≥ 1, received 0.5/,
    ],
    [{ rope_scaling: { type: "mrope" } }, /config.json: rope_scaling: type: expected one of default, .*"mrope"/],
    [
      { rope_parameters: { ...llama3Rope, high_freq_factor: 1 } },
      /rope_parameters: high_freq_factor: expected a number above low_freq_factor, 1, received 1/,
    ],
    [
      { rope_parameters: { full_attention: { rope_type: "linear", factor: 2 } } },
      /rope_parameters: expected the parameters of all layers, .*, received an object with full_attention; move/,
    ],
    [{ num_key_value_heads: 3 }, /num_key_value_heads: expected a divisor of num_attention_heads, 4, received 3/],
    [{ head_dim: 7 }, /config.json: head_dim: expected an even number, .*, received 7/],
    [
      { head_dim: null, hidden_size: 60 },
      /config.json: hidden_size \/ num_attention_heads: expected an even number, .*, received 15/,
    ],
    [
      { quantization_config: { quant_method: "fp8" } },
      /quantization_config: expected null or no such field, received .*; save the model without quantization/,
    ],
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
