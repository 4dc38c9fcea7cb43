import { writeFileSync } from "node:fs";
import { join } from "node:path";
import * as core from "@mosaic/core";
import { createModel } from "@mosaic/models";
import {
  AdamW,
  DataLoader,
  Embedding,
  GELU,
  ropeScaling,
  ScheduleFreeAdamW,
  Sequential,
  tokenArrays,
} from "@mosaic/nn";
import { type Fixture, languageModel } from "./fixture.ts";

/** Creates the valid arguments of a call, new ones each time. */
export type Arguments = (fixture: Fixture) => readonly unknown[] | Promise<readonly unknown[]>;

const span = { start: 0, length: 4, step: 1 };

const wordTokenizer = {
  model: { type: "BPE", vocab: { a: 0, b: 1 }, merges: [] },
  added_tokens: [],
  ...{ normalizer: null, pre_tokenizer: null, post_processor: null, decoder: { type: "ByteLevel" } },
};

/** Creates a module with one gradient. */
export const linearModel = ({ ctx }: Fixture) => {
  const linear = new core.Linear(ctx, 4, 4);
  linear.weight.grad = core.ones(ctx, [4, 4]);
  return linear;
};
const loader = (ctx: core.Context) =>
  new DataLoader(ctx, tokenArrays([[1, 2, 3, 4, 5]]), { rowLength: 2, batchSize: 1 });
const tokens = (directory: string) => {
  const path = join(directory, "tokens.bin");
  writeFileSync(path, new Uint16Array([1, 2, 0]));
  return path;
};
function tokenizerFolder(directory: string): string {
  writeFileSync(join(directory, "tokenizer.json"), JSON.stringify(wordTokenizer));
  return directory;
}
function host(...shape: readonly number[]): core.HostTensor {
  return { dtype: "float32", shape, values: new Float32Array(core.numel(shape)) };
}

/** The calls of nn and models. */
export const modelCalls: Readonly<Record<string, Arguments>> = {
  KvCache: ({ ctx }) => [ctx, { numKvHeads: 2, headDim: 4, maxTokens: 64, blockSize: 4, slidingWindow: 8 }],
  "KvCache.layer": () => [0, [], { lengths: [], sharded: true }],
  "KvCacheLayer.append": ({ ctx }) => [core.zeros(ctx, [1, 2, 3, 4]), core.zeros(ctx, [1, 2, 3, 4])],
  "KvCacheLayer.attend": ({ ctx }) => [core.zeros(ctx, [1, 4, 3, 4]), { mask: core.masks.causal(), scale: 1 }],
  "KvCacheLayer.forward": ({ ctx }) => [
    core.zeros(ctx, [1, 4, 3, 4]),
    core.zeros(ctx, [1, 2, 3, 4]),
    core.zeros(ctx, [1, 2, 3, 4]),
    {
      ...{ mask: core.masks.causal(), scale: 1, backend: core.local() },
      layout: core.layoutOf({ mesh: { sp: 1 }, axes: [], length: 3 }),
    },
  ],
  "CacheSequence.truncate": () => [2],
  DataLoader: ({ ctx }) => [ctx, tokenArrays([[1, 2, 3, 4, 5]]), { rowLength: 2, batchSize: 1, placement: "zigzag" }],
  "DataLoader.load": ({ ctx }) => [loader(ctx).state()],
  tokenArrays: () => [[[1, 2], [3]]],
  tokenFile: ({ directory }) => [tokens(directory), { dtype: "uint16", separator: 0 }],
  fullyShard: (f) => [f.ctx, linearModel(f), { stage: 3, axis: "sp" }],
  readStateDict: (f) => [f.ctx, linearModel(f), { names: ["weight"], rank0Only: true }],
  summonFullParameters: (f) => [linearModel(f), () => 1],
  Dropout: ({ ctx }) => [ctx, 0.5, { placement: "zigzag", sequenceAxis: -2 }],
  Embedding: ({ ctx }) => [ctx, 3, 4, { std: 1 }],
  LoRA: ({ ctx }) => [ctx, new core.Linear(ctx, 4, 4), { rank: 2, alpha: 4, dropout: 0.1 }],
  addLoRA: (f) => [f.ctx, new Sequential(linearModel(f)), { targets: ["0"], rank: 2 }],
  loraStateDict: (f) => [linearModel(f)],
  mergeLoRA: (f) => [new Sequential(linearModel(f))],
  markOnlyLoRATrainable: (f) => [linearModel(f)],
  TiedLinear: ({ ctx }) => [new Embedding(ctx, 3, 4)],
  LayerNorm: ({ ctx }) => [ctx, 4, { epsilon: 1e-3 }],
  RMSNorm: ({ ctx }) => [ctx, 4, { epsilon: 1e-3, weightOffset: 1 }],
  MLP: ({ ctx }) => [ctx, { embedDim: 4, hiddenDim: 8, dropout: 0.1, sharding: { placement: "zigzag" } }],
  GELU: () => [{ approximate: "tanh" }],
  SwiGLU: ({ ctx }) => [ctx, { embedDim: 4, hiddenDim: 8, dropout: 0.1, sharding: { placement: "zigzag" } }],
  GeGLU: ({ ctx }) => [ctx, { embedDim: 4, hiddenDim: 8, approximate: "tanh" }],
  Sequential: () => [new GELU(), new GELU()],
  ModuleList: () => [[new GELU()]],
  "*.append": () => [new GELU()],
  "ModuleList.at": () => [0],
  RotaryEmbedding: () => [8, { base: 100, scaling: ropeScaling.ntk({ factor: 2 }) }],
  "RotaryEmbedding.encode": ({ tensor }) => [tensor(1, 2, 4, 8), [span], 8],
  "RotaryEmbedding.frequencies": () => [8],
  "ropeScaling.linear": () => [{ factor: 2 }],
  "ropeScaling.ntk": () => [{ factor: 2 }],
  "ropeScaling.dynamicNtk": () => [{ factor: 2, originalLength: 64 }],
  "ropeScaling.yarn": () => [{ factor: 2, originalLength: 64, betaFast: 16, truncate: false }],
  "ropeScaling.llama3": () => [{ factor: 2, originalLength: 64, highFreqFactor: 8 }],
  AdamW: (f) => [linearModel(f), { lr: 0.1, betas: [0.9, 0.9], forParameter: () => ({ lrScale: 1 }) }],
  SGD: (f) => [linearModel(f), { lr: 0.1, momentum: 0.9, nesterov: true }],
  ScheduleFreeAdamW: (f) => [linearModel(f), { lr: 0.1, warmupSteps: 2 }],
  "*.forward": ({ tensor }) => [tensor(2, 4)],
  "*.step": ({ tensor }) => [{ loss: tensor() }],
  "AdamW.loadStateDict": (f) => [new AdamW(linearModel(f)).stateDict(), { dryRun: true }],
  "*.loadStateFromSource": () => [
    { numbers: { steps: 0 } },
    { readRange: async (_name: string, from: number, to: number) => new Float32Array(to - from) },
  ],
  "ScheduleFreeAdamW.loadStateDict": (f) => [new ScheduleFreeAdamW(linearModel(f)).stateDict(), { dryRun: true }],
  embedding: ({ tensor }) => [tensor(2), tensor(3, 4)],
  clipGradNorm: (f) => [linearModel(f), 1],
  crossEntropy: ({ ctx, tensor }) => [ctx, tensor(2, 3), tensor(2), { labelSmoothing: 0.1 }],
  crossEntropyTerms: ({ tensor }) => [tensor(2, 3), tensor(2), { ignoreIndex: 0 }],
  linearCrossEntropy: ({ ctx, tensor }) => [ctx, tensor(2, 3), { weight: tensor(4, 3) }, tensor(2), { softcap: 30 }],
  linearCrossEntropyTerms: ({ tensor }) => [tensor(2, 3), { weight: tensor(4, 3) }, tensor(2), { chunkRows: 1 }],
  lossTerms: ({ tensor }) => [tensor(2, 3), tensor(2, 3)],
  meanOverMesh: ({ ctx, tensor }) => [ctx, tensor(2)],
  mseLoss: ({ ctx, tensor }) => [ctx, tensor(2), tensor(2), tensor(2)],
  mseLossTerms: ({ tensor }) => [tensor(2), tensor(2), tensor(2)],
  cosine: () => [4, { end: 0.1 }],
  linearDecay: () => [4, { end: 0.1 }],
  linearWarmup: () => [4, (step: number) => step],
  inverseSquareRoot: () => [4],
  multiStep: () => [[1, 2], 0.5],
  checkSamePath: () => ["test", ["out", "out"]],
  fromTorch: (f) => [new Map([["weight", host(4, 4)]]), linearModel(f)],
  readSafetensors: ({ directory }) => [join(directory, "saved.safetensors")],
  writeSafetensors: ({ directory, tensor }) => [join(directory, "out"), new Map([["x", tensor(2)]]), { note: "text" }],
  saveCheckpoint: (f) => [f.ctx, join(f.directory, "out"), { model: linearModel(f), data: { epoch: 1 } }],
  findCheckpoint: (f) => [f.ctx, join(f.directory, "saved.safetensors"), { copies: "perHost", host: "n0" }],
  loadCheckpoint: (f) => [f.ctx, join(f.directory, "saved.safetensors"), { model: linearModel(f) }],
  openSafetensors: ({ directory }) => [join(directory, "saved.safetensors")],
  skipInit: () => [() => 1],
  // models
  parseConfig: () => ["config.json", languageModel],
  createModel: ({ ctx }) => [ctx, languageModel, { dtype: "bfloat16", placement: "zigzag" }],
  loadModel: ({ ctx, directory }) => [ctx, join(directory, "model"), { dtype: "bfloat16", placement: "zigzag" }],
  GenerationCache: ({ ctx }) => [createModel(ctx, languageModel), { maxTokens: 64, blockSize: 16 }],
  "GenerationCache.forCall": () => [[], { sharded: false }],
  GenerationBatch: ({ ctx }) => [createModel(ctx, languageModel), { maxTokens: 64, blockSize: 16, maxSequences: 2 }],
  "GenerationBatch.hasRoomFor": () => [3],
  "GenerationBatch.add": () => [{ tokens: [1, 2], maxNewTokens: 2, doSample: true, topK: 3, stopStrings: [], seed: 1 }],
  "GenerationBatch.remove": () => [0],
  BatchScheduler: ({ ctx }) => [createModel(ctx, languageModel), { maxTokens: 64, maxPrefillTokens: 8 }],
  "BatchScheduler.generate": () => [{ tokens: [1, 2], maxNewTokens: 2, stopStrings: [], seed: 1 }],
  loadTokenizer: ({ directory }) => [tokenizerFolder(directory)],
  "CausalLM.replaceChild": () => ["lm_head", new GELU()],
  "CausalLM.project": ({ tensor }) => [tensor(1, 2, 8)],
  "CausalLM.generate": () => [{ tokens: [1, 2], maxNewTokens: 2, doSample: true, topK: 3, stopStrings: [], seed: 1 }],
  "CausalLM.save": ({ directory }) => [join(directory, "saved-model"), { maxShardBytes: 100 }],
  Tokenizer: () => [
    "tokenizer.json",
    { tokenizer: wordTokenizer, config: { chat_template: "{{ messages[0].content }}" } },
  ],
  "Tokenizer.vocabSize": () => [false],
  "Tokenizer.encode": () => ["ab", { addSpecialTokens: false }],
  "Tokenizer.minTokens": () => ["ab"],
  "Tokenizer.decode": () => [[0, 1], { skipSpecialTokens: false }],
  "Tokenizer.tokenId": () => ["a"],
  "Tokenizer.applyChatTemplate": () => [
    [{ role: "user", content: "a" }],
    { addGenerationPrompt: false, variables: {} },
  ],
};
