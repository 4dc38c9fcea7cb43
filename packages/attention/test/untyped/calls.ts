import { join } from "node:path";
import { ring } from "@mosaic/backend-ring";
import * as core from "@mosaic/core";
import { trafficOptions } from "@mosaic/core/context-parallel";
import { cpu } from "@mosaic/kernels-cpu";
import { AdamW, GELU, ScheduleFreeAdamW } from "@mosaic/nn";
import type { Fixture } from "./fixture.ts";

/** Makes the right arguments of a call, new ones each time. */
type Arguments = (fixture: Fixture) => readonly unknown[] | Promise<readonly unknown[]>;

const layout = { mesh: { sp: 1 }, axes: ["sp"], length: 4 } as const;
const span = { start: 0, length: 4, step: 1 };
const slice = core.masks.causal().slices(4, 4)[0]!;
const job = { tokens: 64, numHeads: 2, headDim: 8, gpusPerNode: 2, simulate: 1 };
const recorded = { mesh: { sp: 2 }, backend: ring(), batch: 1, numHeads: 2, headDim: 4, tokens: 8 };

const flow = { bytesPerRow: [8, 8], sent: [4, 0], received: [4] };

const sizes = { batch: 1, numHeads: 2, numKvHeads: 2, headDim: 8 };

function call({ ctx }: Fixture): core.AttentionCall {
  const q = core.zeros(ctx, [1, 2, 4, 8]);
  const lengths = core.layoutOf(layout);
  return { q, at: ctx.mesh.coordinate, scale: 1, mask: [slice], queries: lengths, keys: lengths };
}

const qkv = ({ tensor }: Fixture) => [tensor(1, 2, 4, 8), tensor(1, 2, 4, 8), tensor(1, 2, 4, 8)] as const;
const model = ({ ctx }: Fixture) => {
  const linear = new core.Linear(ctx, 4, 4);
  linear.weight.grad = core.ones(ctx, [4, 4]);
  return linear;
};
const kv = (f: Fixture) => ({ k: f.tensor(1, 2, 4, 8), v: f.tensor(1, 2, 4, 8), from: f.ctx.mesh.coordinate });
const state = (f: Fixture) => core.emptyState(f.tensor(1, 2, 4, 8));

/** By the name of a parameter: what most functions call so. */
export const byParameter: Readonly<Record<string, (fixture: Fixture) => unknown>> = {
  ctx: ({ ctx }) => ctx,
  on: ({ ctx }) => ctx,
  device: ({ ctx }) => ctx.device,
  x: ({ tensor }) => tensor(2, 4),
  a: ({ tensor }) => tensor(2, 4),
  b: ({ tensor }) => tensor(2, 4),
  full: ({ tensor }) => tensor(2, 4),
  shape: () => [2, 4],
  where: () => "test",
  axis: () => 0,
  axes: () => [0, 1],
  slice: () => slice,
  spans: () => [span],
  body: () => () => 1,
  dtype: () => "float32",
  record: ({ record }) => record,
  run: ({ record }) => record,
  profile: ({ profile }) => profile,
  meta: ({ meta }) => meta,
  options: () => ({}),
};

/** By the name of a function, or of a class and a method: where parameters alone do not state it. */
export const byName: Readonly<Record<string, Arguments>> = {
  // core: tensors and operations
  fromArray: ({ ctx }) => [ctx, [1, 2, 3, 4], [2, 2], "float32"],
  full: ({ ctx }) => [ctx, [2, 2], 1, "float32"],
  randn: ({ ctx }) => [ctx, [2, 2], { seed: 1, stream: 1, std: 1 }],
  rand: ({ ctx }) => [ctx, [2, 2], { seed: 1, low: 0, high: 1 }],
  scale: ({ tensor }) => [tensor(2, 4), 2],
  matmul: ({ tensor }) => [tensor(2, 4), tensor(4, 3)],
  linear: ({ tensor }) => [tensor(2, 4), tensor(3, 4), tensor(3)],
  layerNorm: ({ tensor }) => [tensor(2, 4), tensor(4), tensor(4), { epsilon: 1e-3 }],
  rmsNorm: ({ tensor }) => [tensor(2, 4), tensor(4), { epsilon: 1e-3 }],
  sum: ({ tensor }) => [tensor(2, 4), [0, -1], { keepDims: true }],
  mean: ({ tensor }) => [tensor(2, 4), 1, { keepDims: true }],
  max: ({ tensor }) => [tensor(2, 4), 1, { keepDims: true }],
  concatenate: ({ tensor }) => [[tensor(2, 4), tensor(2, 4)], 0],
  attention: (f) => [f.ctx, ...qkv(f), { mask: core.masks.causal(), scale: 0.5, returnLse: true }],
  emptyState: (f) => [qkv(f)[0]],
  checkpoint: ({ tensor }) => [(x: core.Tensor) => core.relu(x), tensor(2, 4)],
  keep: ({ tensor }) => [tensor(2)],
  defineOp: () => [
    {
      name: "identity",
      forward: ([x]: [core.Tensor]) => ({ output: x.detach(), saved: {} }),
      backward: (_: unknown, dOut: core.Tensor) => [dOut],
    },
  ],
  preserveVersion: ({ tensor }) => [[tensor(2)], () => 1],
  // core: sizes, layouts, masks
  broadcastShapes: () => [[2, 1], [1, 4], "test"],
  checkViewBounds: () => [{ shape: [2, 2], strides: [2, 1], offset: 0 }, 4],
  isContiguous: () => [
    [2, 2],
    [2, 1],
  ],
  sameShape: () => [[2], [2]],
  normalizeAxis: () => [-1, 2, "test"],
  viewStrides: () => [[2, 2], [2, 1], [4]],
  clipKeys: () => [slice, 0, 2],
  clipQueries: () => [slice, 0, 2],
  rowRange: () => [slice, 1],
  findOverlap: () => [[slice]],
  sliceIntersects: () => [slice, { q0: 0, q1: 2, k0: 0, k1: 2 }],
  slicesOverlap: () => [slice, slice],
  isVisible: () => [[span], [span], [slice]],
  visiblePairs: () => [[span], [span], [slice]],
  rowsWithin: () => [span, slice],
  "masks.slidingWindow": () => [2],
  "masks.documents": () => [[2, 2], "causal"],
  "masks.prefix": () => [2],
  "masks.fromSlices": () => [[slice]],
  resolveSlices: () => [core.masks.causal(), 4, 4],
  resolveShards: () => [core.zigzag(), 2, 8],
  contiguous: () => [[2, 2]],
  resolvePlacement: () => ["zigzag"],
  layoutOf: () => [{ ...layout, placement: "zigzag" }],
  positions: () => [[span]],
  shard: ({ ctx, tensor }) => [ctx, tensor(2, 4), 1, { placement: "zigzag", axes: ["sp"], length: 4 }],
  unshard: ({ ctx, tensor }) => [ctx, tensor(2, 4), 1, { placement: "zigzag", axes: ["sp"], length: 4 }],
  sequenceAxes: () => [{ sp: 2 }],
  coordinateOf: () => [1, { dp: 2, sp: 2 }],
  omitAxes: () => [{ dp: 1, sp: 2 }, ["dp"]],
  createMesh: ({ ctx }) => [ctx.world, { sp: 1 }],
  init: ({ ctx }) => [{ device: ctx.device, rank: 0, worldSize: 1, mesh: { dp: 1, sp: 1 }, seed: 2, timeout: 3 }],
  // core: contracts
  checkFeatures: (f) => [f.ctx.device, kv(f), core.tileOf(call(f), kv(f))],
  checkTile: (f) => [f.tensor(1, 2, 4, 8), kv(f), core.tileOf(call(f), kv(f))],
  tileOf: (f) => [call(f), kv(f)],
  blockwise: () => [ring(), [{ sp: 0 }]],
  operandsOf: () => ["matmul"],
  tensorOf: ({ tensor }) => [core.operandsOf("fill")[0], [tensor(2), 1]],
  compileKernel: () => ["fill", "", []],
  versionedKernels: ({ ctx }) => [{ fill: ctx.device.kernels.fill }],
  errorFromFailure: () => [1, "text"],
  checkArgument: () => ["test", 1, core.option.integer()],
  Tensor: ({ tensor }) => [{ ...tensor(2, 4) }],
  checkBackend: () => ["test", ring()],
  describeBackend: () => [ring()],
  checkDType: () => ["test", "float16"],
  checkModule: () => ["test", new GELU()],
  expectValue: () => ["test", true, "text", 1],
  formatValue: () => [1],
  "initOptions.parse": ({ ctx }) => [{ device: ctx.device, mesh: { sp: 1 } }, "test"],
  "trafficOptions.parse": (f) => [{ mesh: { sp: 1 }, call: call(f), dtype: "float32" }, "test"],
  axisLength: () => ["test", { sp: 2 }, { axis: "sp", from: { sp: 0 } }],
  checkFunction: () => ["test", () => {}],
  checkSlices: () => ["test", [slice]],
  checkTensor: ({ tensor }) => ["test", tensor(2), 1],
  checkNullableTensor: ({ tensor }) => ["test", tensor(2)],
  defineOptions: () => ["test", { a: core.option.integer({ default: 1 }) }],
  "option.custom": () => ["text", (value: unknown) => value === 1, { default: 1 }],
  "option.oneOf": () => [["a", "b"], { default: "a" }],
  "option.instance": () => [core.Tensor, {}],
  "option.array": () => [core.option.integer(), {}],
  "option.pair": () => [core.option.integer(), {}],
  "option.either": () => [core.option.integer(), core.option.string(), {}],
  "option.nullable": () => [core.option.integer(), {}],
  "option.nested": () => [core.initOptions, {}],
  "option.hasMethods": () => ["a"],
  "option.isFunction": () => [() => 1],
  "option.isObject": () => [{}],
  "option.checkOption": () => ["test", core.option.integer()],
  "option.checkFields": () => ["test", { a: core.option.integer() }],
  Storage: () => [1n, 8, () => {}],
  "option.acceptsAbsent": () => [core.option.integer(), 1],
  createParameter: ({ ctx }) => [ctx, [2, 2], { initial: { kind: "normal", mean: 0, std: 1 }, dtype: "float32" }],
  loadState: ({ tensor }) => ["test", new Map([["x", tensor(2)]]), new Map([["x", tensor(2)]]), { strict: false }],
  reduceGradients: (f) => [f.ctx, model(f)],
  // core: modules
  Linear: ({ ctx }) => [ctx, 4, 2, { bias: true }],
  MultiAxisAttention: ({ ctx }) => [ctx, { embedDim: 8, numHeads: 2, attentionAxis: 1, causal: true }],
  MultiAxisAttention2D: ({ ctx }) => [ctx, { embedDim: 8, numHeads: 2, axis1: 1, axis2: 2 }],
  CrossAxisAttention: ({ ctx }) => [ctx, { embedDim: 8, numHeads: 2, qAxis: 1, kvAxis: 1, kvEmbedDim: 8 }],
  "Linear.forward": ({ tensor }) => [tensor(2, 4)],
  "MultiAxisAttention.forward": ({ tensor }) => [tensor(1, 4, 8), { sequenceLength: 4, mask: core.masks.full() }],
  "MultiAxisAttention2D.forward": ({ tensor }) => [tensor(1, 4, 2, 8), { sequenceLength: 4 }],
  "CrossAxisAttention.forward": ({ tensor }) => [tensor(1, 4, 8), tensor(1, 3, 8), { kvSequenceLength: 3 }],
  "*.addParameter": ({ tensor }) => ["extra", tensor(2)],
  "*.addBuffer": ({ tensor }) => ["extra", tensor(2)],
  "*.addChild": () => ["extra", new GELU()],
  "*.loadStateDict": ({ tensor }) => [new Map([["other", tensor(4, 2)]]), { strict: false }],
  "*.train": () => [true],
  // core: context-parallel
  ChunkBuffers: ({ ctx }) => [{ device: ctx.device, order: "sbhd", slotRows: 4 }],
  "ChunkBuffers.empty": ({ tensor }) => [[tensor(1, 2, 4, 8)], 3],
  "ChunkBuffers.slot": ({ tensor }) => ["kv", [tensor(1, 2, 4, 8)], 3],
  "ChunkBuffers.zeros": ({ tensor }) => [[tensor(1, 2, 4, 8)], 3],
  "ChunkBuffers.contiguous": ({ tensor }) => [[tensor(1, 2, 4, 8)]],
  "ChunkBuffers.copy": ({ tensor }) => [[tensor(1, 2, 4, 8)]],
  "ChunkBuffers.narrow": ({ tensor }) => [{ tensors: [], wire: [tensor(3, 1, 2, 8)] }, 1, 2],
  "ChunkBuffers.takeOwnership": ({ tensor }) => [tensor(2)],
  LayoutCache: () => [["sp"]],
  "LayoutCache.getOrCreate": (f) => [call(f), { sp: 0 }, () => 1],
  dependencyTable: (f) => [{ axis: "sp", size: 1 }, call(f), { sp: 0 }],
  dependencyTableCache: () => [{ axis: "sp" }],
  modulo: () => [3, 2],
  reverseFlow: () => [flow, [8]],
  totalTraffic: () => [[flow]],
  parseTrafficOptions: (f) => [trafficOptions, { mesh: { sp: 1 }, call: call(f), dtype: "float32" }],
  formatSlices: () => [[slice]],
  formatShards: () => [[[span]]],
  hashNumbers: () => [[1, 2]],
  sendTransfers: (f) => [{ tensors: [], wire: [f.tensor(2)] }, 0],
  recvTransfers: (f) => [{ tensors: [], wire: [f.tensor(2)] }, 0],
  validator: () => [{ name: "mine", axis: "sp", inner: core.local() }],
  // Tensor
  "Tensor.reshape": () => [[4, 2]],
  "Tensor.permute": () => [[1, 0]],
  "Tensor.transpose": () => [0, 1],
  "Tensor.slice": () => [1, 0, 3, 2],
  "Tensor.expand": () => [[3, 2, 4]],
  "Tensor.to": () => ["bfloat16"],
  "Tensor.add": ({ tensor }) => [tensor(2, 4)],
  "Tensor.sub": ({ tensor }) => [tensor(2, 4)],
  "Tensor.mul": ({ tensor }) => [tensor(2, 4)],
  "Tensor.div": ({ tensor }) => [tensor(2, 4)],
  "Tensor.scale": () => [2],
  "Tensor.matmul": ({ tensor }) => [tensor(4, 2)],
  "Tensor.linear": ({ tensor }) => [tensor(3, 4), tensor(3)],
  "Tensor.softmax": () => [1],
  "Tensor.layerNorm": ({ tensor }) => [tensor(4), tensor(4), { epsilon: 1e-3 }],
  "Tensor.rmsNorm": ({ tensor }) => [tensor(4), { epsilon: 1e-3 }],
  "Tensor.sum": () => [1, { keepDims: true }],
  "Tensor.mean": () => [1, { keepDims: true }],
  "Tensor.max": () => [1, { keepDims: true }],
  "Tensor.view": () => [{ shape: [4], strides: [1], offset: 0 }],
  "Tensor.assertNotDisposed": () => ["test"],
  "Tensor.record": ({ tensor }) => [[tensor(2)], { name: "test", backward: () => [null], free: () => {} }, false],
  "Tensor.backward": ({ tensor }) => [tensor(2, 4)],
  // what init returns
  "Context.backend": () => ["ring"],
  "Context.assertOpen": () => ["test"],
  "Group.sendRecv": ({ tensor }) => sendToSelf(tensor(2), tensor(2)),
  "Group.allGather": ({ tensor }) => [tensor(2), tensor(2), { counts: [2], label: "test" }],
  "Group.reduceScatter": ({ tensor }) => [tensor(2), tensor(2), "sum", { counts: [2], label: "test" }],
  "Group.allReduce": ({ tensor }) => [tensor(2), "mean", { label: "test" }],
  "Group.allToAll": ({ tensor }) => [tensor(2), tensor(2), { send: [2], receive: [2] }],
  "Group.broadcast": ({ tensor }) => [tensor(2), 0, { label: "test" }],
  "Group.barrier": () => [{ label: "test" }],
  "Group.groupCast": ({ tensor }) => [[tensor(0, 4)], [tensor(2, 4)], noRows, { hierarchical: true, label: "test" }],
  "Group.groupReduce": ({ tensor }) => [[tensor(2, 4)], [tensor(0, 4)], noRows, { wire: "bfloat16", label: "test" }],
  "Group.split": () => [0, "test"],
  "Group.recordCall": () => ["test"],
  "Mesh.group": () => ["sp"],
  "Device.empty": () => [[2, 2], "float32"],
  "Device.write": ({ tensor }) => [tensor(2), [1, 2]],
  "Device.read": ({ tensor }) => [tensor(2)],
  "Layout.spans": () => [{ sp: 0 }],
  "Placement.spans": () => [0, 2, 8],
  "Mask.slices": () => [4, 4],
  // nn
  Dropout: ({ ctx }) => [ctx, 0.5, { placement: "zigzag", sequenceAxis: -2 }],
  Embedding: ({ ctx }) => [ctx, 3, 4, { std: 1 }],
  LayerNorm: ({ ctx }) => [ctx, 4, { epsilon: 1e-3 }],
  RMSNorm: ({ ctx }) => [ctx, 4, { epsilon: 1e-3 }],
  MLP: ({ ctx }) => [ctx, { embedDim: 4, hiddenDim: 8, dropout: 0.1, sharding: { placement: "zigzag" } }],
  GELU: () => [],
  Sequential: () => [new GELU(), new GELU()],
  ModuleList: () => [[new GELU()]],
  "*.append": () => [new GELU()],
  "ModuleList.at": () => [0],
  RotaryEmbedding: () => [8, { base: 100 }],
  "RotaryEmbedding.encode": ({ tensor }) => [tensor(1, 2, 4, 8), [span]],
  AdamW: (f) => [model(f), { lr: 0.1, betas: [0.9, 0.9], forParameter: () => ({ lrScale: 1 }) }],
  ScheduleFreeAdamW: (f) => [model(f), { lr: 0.1, warmupSteps: 2 }],
  "*.forward": ({ tensor }) => [tensor(2, 4)],
  "*.step": ({ tensor }) => [{ loss: tensor() }],
  "AdamW.loadStateDict": (f) => [new AdamW(model(f)).stateDict(), { dryRun: true }],
  "ScheduleFreeAdamW.loadStateDict": (f) => [new ScheduleFreeAdamW(model(f)).stateDict(), { dryRun: true }],
  embedding: ({ tensor }) => [tensor(2), tensor(3, 4)],
  clipGradNorm: (f) => [model(f), 1],
  crossEntropy: ({ ctx, tensor }) => [ctx, tensor(2, 3), tensor(2), { labelSmoothing: 0.1 }],
  crossEntropyTerms: ({ tensor }) => [tensor(2, 3), tensor(2), { ignoreIndex: 0 }],
  lossTerms: ({ tensor }) => [tensor(2, 3), tensor(2, 3)],
  meanOverMesh: ({ ctx, tensor }) => [ctx, tensor(2)],
  mseLoss: ({ ctx, tensor }) => [ctx, tensor(2), tensor(2), tensor(2)],
  mseLossTerms: ({ tensor }) => [tensor(2), tensor(2), tensor(2)],
  cosine: () => [4, { end: 0.1 }],
  linearDecay: () => [4, { end: 0.1 }],
  linearWarmup: () => [4, (step: number) => step],
  inverseSquareRoot: () => [4],
  multiStep: () => [[1, 2], 0.5],
  fromTorch: (f) => [new Map([["weight", host(4, 4)]]), model(f)],
  readSafetensors: ({ folder }) => [join(folder, "saved.safetensors")],
  writeSafetensors: ({ folder, tensor }) => [join(folder, "out"), new Map([["x", tensor(2)]]), { note: "text" }],
  saveCheckpoint: (f) => [f.ctx, join(f.folder, "out"), { model: model(f), data: { epoch: 1 } }],
  findCheckpoint: (f) => [f.ctx, join(f.folder, "saved.safetensors"), { copies: "perHost", host: "n0" }],
  loadCheckpoint: (f) => [f.ctx, join(f.folder, "saved.safetensors"), { model: model(f) }],
  // meta-attention
  ChunkSummaryEncoder: ({ ctx }) => [ctx, { embedDim: 8, summaryDim: 8, numHeads: 2 }],
  "ChunkSummaryEncoder.forward": ({ tensor }) => [tensor(1, 4, 8)],
  "ChunkSummaryEncoder.pool": ({ tensor }) => [tensor(1, 4, 8)],
  "ChunkSummaryEncoder.summarize": ({ tensor }) => [
    { content: tensor(1, 8), weights: tensor(1, 4) },
    new Float32Array(4),
  ],
  HierarchicalMetaAttention: ({ ctx }) => [ctx, { embedDim: 8, numHeads: 2, summaryDim: 8, chunksPerRank: 2, topK: 1 }],
  MultiAxisHierarchicalAttention: ({ ctx }) => [ctx, { embedDim: 8, numHeads: 2, summaryDim: 8, attentionAxis: 1 }],
  "HierarchicalMetaAttention.forward": ({ tensor }) => [tensor(1, 4, 8), { step: 1, sequenceLength: 4 }],
  "MultiAxisHierarchicalAttention.forward": ({ tensor }) => [tensor(1, 4, 8), { step: 1 }],
  MetaAttention: ({ ctx }) => [ctx, { summaryDim: 8, numHeads: 2, causal: true }],
  "MetaAttention.forward": ({ tensor }) => [tensor(1, 3, 8), { noise: tensor(1, 3, 3) }],
  massLoss: ({ meta }) => [meta, { pool: "mean" }],
  denseToSparse: () => [2, { topK: 1, chunks: 4, steps: 5 }],
  // strategies, planner, backends
  composed: () => [{ meshShape: { head: 2, seq: 2 }, seqParallel: "ring", axes: { head: "h" } }],
  ComposedAttention: () => [{ meshShape: { head: 2, seq: 2 }, seqParallel: "ring" }],
  HierarchicalAttention: () => [{ intraNodeSize: 2, interNodeStrategy: "ring" }],
  hierarchical: () => [{ intraNodeSize: 2, interNodeStrategy: "ring" }],
  plan: () => [{ ...job, profile: "cpu-local", candidates: [{ backend: ring() }] }],
  auto: () => [{ ...job, batch: 1 }],
  ring: () => [{ axis: "sp", inner: core.local() }],
  ulysses: () => [{ axis: "sp", inner: core.local() }],
  flex: () => [
    {
      axis: "sp",
      stages: { forward: 1, backward: 2 },
      cost: { latency: 1e-6 },
      queriesTravel: true,
      inner: core.local(),
    },
  ],
  mesh2d: () => [{ axis: "sp", shape: [1, 1], schedule: "fused", channels: 2, links: [1, 2] }],
  "Backend.check": ({ ctx }) => [ctx],
  "Backend.withShape": () => [[1, 1]],
  "Backend.blockwise": () => [[{ sp: 0 }]],
  "Backend.attend": (f) => [f.ctx, call(f), state(f), kv(f)],
  "Backend.attendBackward": (f) => {
    const { out, lse } = state(f);
    const rows = { ...call(f), dOut: out, lse, delta: f.tensor(1, 2, 4) };
    const grads = { dq: f.tensor(1, 2, 4, 8), dk: f.tensor(1, 2, 4, 8), dv: f.tensor(1, 2, 4, 8) };
    return [f.ctx, rows, grads, kv(f)];
  },
  record: () => [recorded],
  recordClasses: () => [recorded, { ranksPerNode: 1 }],
  checkClasses: () => ["test", recorded, 1],
  predict: ({ profile }) => [recorded, profile, {}],
  sketch: ({ profile }) => [recorded, profile, [0]],
  prove: ({ record }) => [record, { limit: 2 }],
  symbolicWorld: () => [{ mesh: { sp: 2 }, backends: [ring()] }],
  timelineOf: () => [[{ rank: 0, at: { sp: 0 }, events: [] }]],
  timelineSvg: ({ simulation }) => [simulation, { title: "t", ranks: [0] }],
  tileMapSvg: ({ record }) => [record, { title: "t", ranks: [0] }],
  count: ({ record }) => [record],
  simulate: ({ record, profile }) => [record, profile, { keep: () => true }],
  parseProfile: ({ profile }) => [profile],
  calibrate: ({ ctx }) => [{ contexts: [ctx], dtypes: ["float32"], headDims: [16], repetitions: 1 }],
  ringTraffic: (f) => [{ mesh: { sp: 1 }, call: call(f), dtype: "float32", width: 8, inner: core.local() }],
  mesh2dTraffic: (f) => [{ mesh: { sp: 1 }, call: call(f), dtype: "float32", ...sizes }],
  flexTraffic: (f) => [
    { mesh: { sp: 1 }, call: call(f), dtype: "float32", stages: 1, cost: {}, queriesTravel: true, ...sizes },
  ],
  ulyssesTraffic: (f) => [{ mesh: { sp: 1 }, call: call(f), dtype: "float32", ...sizes }],
  perfettoTrace: ({ simulation }) => [simulation],
  timeBreakdown: ({ simulation }) => [simulation],
  countLinks: ({ record, profile }) => [record, profile],
  linkClass: ({ profile }) => [profile, 0, 1],
  formatBytes: () => [100],
  formatSeconds: () => [0.1],
  formatPercent: () => [0.1],
  document: () => [{ title: "t", description: "d", height: 10, body: ["<g/>"] }],
  heading: () => ["title", "subtitle"],
  footnotes: () => [["fact"], 10],
  rect: () => [{ x: 0, y: 0, width: 1, height: 1 }, 'rx="2"'],
  text: () => [1, 2, "words", 'rx="2"'],
  tooltip: () => ["words", "<g/>"],
  formatCoordinate: () => [1.234],
  escape: () => ["words"],
  textWidth: () => ["words", 12],
  truncate: () => ["words", 12, 100],
  // GPUs
  cuda: () => [{ index: 0, memoryLimit: 2 ** 20, tf32: true }],
  CudaDevice: () => [{ index: 0, memoryLimit: 2 ** 20, tf32: true }],
  nccl: () => [{ timeout: 1, connectTimeout: 1 }],
  "collectives-nccl.world": () => [2, { spSize: 2, device: () => cpu({ threads: 1 }) }],
  // attention
  detect: () => [{ worldSize: 1, localRanks: 1 }],
  cpu: () => [{ threads: 1, index: 0, memoryLimit: 2 ** 20 }],
  CpuDevice: () => [{ threads: 1, index: 0, memoryLimit: 2 ** 20 }],
  "attention.init": () => [{ device: "cpu", rank: 0, worldSize: 1, mesh: { sp: 1 }, seed: 1 }],
  "attention.world": () => [2, { spSize: 2, device: () => cpu({ threads: 1 }) }],
  "collectives-local.world": () => [2, { spSize: 2, device: () => cpu({ threads: 1 }) }],
  "collectives-local.local": () => [{ name: "test", connectTimeout: 1 }],
  fmaPeak: () => [1],
};

function host(...shape: readonly number[]): core.HostTensor {
  return { dtype: "float32", shape, values: new Float32Array(core.numel(shape)) };
}

/** A plan of one rank. */
const noRows: core.GroupCastPlan = { size: 1, ranges: () => [] };

function sendToSelf(sent: core.Tensor, received: core.Tensor): readonly unknown[] {
  return [
    [
      { tensor: sent, to: 0 },
      { tensor: received, from: 0 },
    ],
    { label: "test" },
  ];
}
