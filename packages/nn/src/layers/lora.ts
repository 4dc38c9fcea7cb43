import {
  checkContext,
  checkModule,
  checkTensor,
  type Context,
  defineOptions,
  DisposedError,
  expectValue,
  formatValue,
  keep,
  Linear,
  Module,
  MosaicError,
  option,
  OptionError,
  type OptionsOf,
  type Tensor,
} from "@mosaic/core";
import { getShard } from "../sharding/flat-parameters.ts";
import { Dropout, type DropoutForwardOptions, shardingOptions } from "./dropout.ts";

// W [out,in] is the weight of the base; A [rank,in], B [out,rank].

export const loraOptions = defineOptions("LoRA", {
  /** Rank of the update that is added to the weight. */
  rank: option.integer({ min: 1 }),
  /** The update is scaled by alpha / rank. Default: rank, a scale of 1. */
  alpha: option.number({ above: 0, optional: true }),
  /** Probability of dropout on the input of A. Default 0. */
  dropout: option.number({ min: 0, below: 1, default: 0 }),
  /** How the input is sharded over the ranks. Used only by dropout. Default: as in Dropout. */
  sharding: option.nested(shardingOptions, { optional: true }),
});
/** Options of LoRA. */
export type LoRAOptions = OptionsOf<typeof loraOptions>;

/** W + scale · B A, and the versions of W, A and B from which it was computed. */
interface MergedWeight {
  readonly weight: Tensor;
  readonly versions: readonly number[];
}

/**
 * Low-rank adaptation of a linear layer (Hu et al. 2021): base(x) + alpha / rank · B A x. The base is frozen, and A and
 * B are trained. A is initialized like the weight of a Linear and B with zeros, so that the initial output is that of
 * the base. Parameters are named as in PEFT: base_layer.weight, base_layer.bias, lora_A.weight [rank,in], lora_B.weight
 * [out,rank]. They have the base's dtype.
 *
 * @example
 * ```ts
 * import { init, Linear, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { AdamW, LoRA, loraStateDict } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new LoRA(ctx, new Linear(ctx, 8, 4), { rank: 2, alpha: 4 });
 * using optimizer = new AdamW(layer, { lr: 0.1 });
 * using x = randn(ctx, [3, 8]);
 * using loss = layer.forward(x).square().sum();
 * loss.backward();
 * optimizer.step();
 * layer.parameters().filter((each) => each.requiresGrad).length; // => 2
 * [...loraStateDict(layer).keys()]; // => ["lora_A.weight", "lora_B.weight"]
 * layer.eval().merge();
 * using y = layer.forward(x); // one product
 * y.shape; // => [3, 4]
 * layer.unmerge();
 * ```
 * @throws OptionError if the base is not a Linear.
 */
export class LoRA extends Module {
  readonly base: Linear;
  readonly a: Linear;
  readonly b: Linear;
  /** alpha / rank. */
  readonly scale: number;
  readonly #dropout: Dropout;
  #merged: MergedWeight | undefined;

  constructor(ctx: Context, base: Linear, options: LoRAOptions) {
    super();
    checkContext("LoRA", ctx);
    const { rank, alpha = rank, dropout, sharding } = loraOptions.parse(options);
    const { weight } = (base ?? {}) as Partial<Linear>;
    expectValue("LoRA: base", weight?.rank === 2 && typeof base.forward === "function", "a Linear", base);
    const [outFeatures, inFeatures] = base.weight.shape as [number, number];
    const { dtype } = base.weight;
    this.scale = alpha / rank;
    this.base = this.addChild("base_layer", base);
    this.a = this.addChild("lora_A", new Linear(ctx, inFeatures, rank, { bias: false, dtype }));
    this.b = this.addChild("lora_B", new Linear(ctx, rank, outFeatures, { bias: false, dtype }));
    this.#dropout = this.addChild("lora_dropout", new Dropout(ctx, dropout, sharding));
    ctx.device.kernels.fill(this.b.weight, 0);
    freeze(base.parameters());
  }

  /** x [..,in] → [..,out]. `options` of dropout describe how the sequence is sharded in this call. */
  forward(x: Tensor, options?: DropoutForwardOptions): Tensor {
    checkTensor("LoRA", x);
    this.#checkNotDisposed("LoRA.forward");
    const { mergedWeight } = this;
    if (mergedWeight && !this.#hasLayerHooks) return x.linear(mergedWeight, this.base.bias);
    const lowRankOutput = this.a.forward(this.#dropout.forward(x, options)).scale(this.scale);
    return this.base.forward(x).add(this.b.forward(lowRankOutput));
  }

  /** The base's weight, [out,in]. */
  get weight(): Tensor {
    return this.base.weight;
  }

  /** The base's bias, [out]. */
  get bias(): Tensor | null {
    return this.base.bias;
  }

  /** Whether a layer has forward hooks, which a product with the merged weight would skip. */
  get #hasLayerHooks(): boolean {
    return [this.base, this.a, this.b, this.#dropout].some(({ hasForwardHooks }) => hasForwardHooks);
  }

  /** Whether `forward` is a single matmul with `mergedWeight`, unless a layer of the adapter has forward hooks. */
  get isMerged(): boolean {
    return this.#merged !== undefined;
  }

  /**
   * W + scale · B A while merged, rounded once to the base's dtype: the weight of an equivalent model without adapters.
   * Null if not merged. Owned by this module.
   */
  get mergedWeight(): Tensor | null {
    return this.#merged ? this.#mergedWeight(this.#merged) : null;
  }

  /**
   * Makes `forward` as fast as that of the base, for inference: computes W + scale · B A and keeps it in addition to W.
   * W and the state dict do not change. If W, A or B change, the merged weight is recomputed at its next use. If a layer
   * of the adapter has forward hooks, `forward` runs the layers and their hooks instead.
   */
  merge(): this {
    this.#checkNotDisposed("LoRA.merge");
    this.#merged ??= this.#mergeWeight();
    return this;
  }

  /** Undoes `merge` and releases its memory. `forward` is again, bit for bit, what it was before. */
  unmerge(): this {
    this.#merged?.weight.dispose();
    this.#merged = undefined;
    return this;
  }

  /** Throws a DisposedError if the adapter is disposed, which `mergeLoRA` does after it has replaced it by its base. */
  #checkNotDisposed(where: string): void {
    if (!this.a.weight.isDisposed) return;
    throw new DisposedError({
      where,
      expected: "an adapter that is not disposed",
      received: "an adapter whose weights are disposed",
      remedy: "use the base of an adapter that mergeLoRA has merged",
    });
  }

  #versions(): number[] {
    return [this.base, this.a, this.b].map(({ weight }) => weight.storage.version);
  }

  #mergedWeight(merged: MergedWeight): Tensor {
    if (this.training) {
      throw new MosaicError({
        where: "LoRA.forward",
        expected: "unmerged adapters for training",
        received: "merged adapters, which receive no gradient",
        remedy: "call unmerge() before training, or eval() for inference",
      });
    }
    const versions = this.#versions();
    if (merged.versions.every((version, i) => version === versions[i])) return merged.weight;
    merged.weight.dispose();
    this.#merged = this.#mergeWeight();
    return this.#merged.weight;
  }

  #mergeWeight(): MergedWeight {
    const { device, shape, dtype } = this.base.weight;
    const weight = keep(device.empty(shape, dtype));
    writeMergedWeight(weight, this);
    return { weight, versions: this.#versions() };
  }

  override [Symbol.dispose](): void {
    this.unmerge();
    super[Symbol.dispose]();
  }
}

/** weight ← W + scale · B A. `weight` may be W. The sum is float32, so that it is rounded once. */
function writeMergedWeight(weight: Tensor, { base, a, b, scale }: LoRA): void {
  const { device, shape } = base.weight;
  using product = device.empty(shape, "float32");
  device.kernels.matmul(product, b.weight, a.weight, false);
  device.kernels.scalar("mul", product, product, scale);
  device.kernels.binary("add", weight, base.weight, product);
}

function freeze(parameters: readonly Tensor[]): void {
  for (const parameter of parameters) {
    parameter.requiresGrad = false;
    parameter.grad?.dispose();
    parameter.grad = null;
  }
}

export const addLoRAOptions = defineOptions("addLoRA", {
  ...loraOptions.fields,
  /** The layers to adapt: names such as "qkv_proj", or suffixes of paths such as "attn.out_proj". */
  targets: option.array(option.string()),
});
/** Options of `addLoRA`. */
export type AddLoRAOptions = OptionsOf<typeof addLoRAOptions>;

/**
 * Wraps the Linear layers of a model that `targets` names in a `LoRA`, and freezes all other parameters, as PEFT's
 * `get_peft_model`. Returns the paths of the adapters. Load the parameters of the model first, because an adapter
 * renames them to base_layer.weight and base_layer.bias. Collective.
 *
 * @example
 * ```ts
 * import { init, MultiAxisAttention, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { addLoRA, loraStateDict } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using attn = new MultiAxisAttention(ctx, { embedDim: 16, numHeads: 2, attentionAxis: 1 });
 * addLoRA(ctx, attn, { targets: ["qkv_proj"], rank: 4, alpha: 8 }); // => ["qkv_proj"]
 * using x = randn(ctx, [1, 5, 16]);
 * using out = attn.forward(x);
 * [...loraStateDict(attn).keys()]; // => ["qkv_proj.lora_A.weight", "qkv_proj.lora_B.weight"]
 * ```
 * @throws OptionError for a target that matches no Linear, and for a layer that its module stores in a `#field`. The
 * model is then unchanged.
 */
export function addLoRA(ctx: Context, model: Module, options: AddLoRAOptions): readonly string[] {
  checkContext("addLoRA", ctx);
  checkModule("addLoRA", model);
  const { targets, ...adapterOptions } = addLoRAOptions.parse(options);
  const layers = listLinears(model);
  const matches = (path: string, target: string) => path === target || path.endsWith(`.${target}`);
  for (const target of targets) {
    if (layers.some(({ path }) => matches(path, target))) continue;
    const paths = layers.map(({ path }) => `"${path}"`).join(", ");
    throw new OptionError({
      where: "addLoRA: targets",
      expected: `names of Linear layers, or suffixes of their paths (available: ${paths === "" ? "none" : paths})`,
      received: formatValue(target),
    });
  }
  const targetLayers = layers.filter(({ path }) => targets.some((target) => matches(path, target)));
  // Replaces each layer by itself first, so that a layer that cannot be replaced is reported before anything changes.
  for (const { parent, name, layer } of targetLayers) parent.replaceChild(name, layer);
  const adapters = new Map<Linear, LoRA>();
  for (const { parent, name, layer } of targetLayers) {
    // A layer that two modules share has one adapter, which they also share.
    const adapter = adapters.get(layer) ?? new LoRA(ctx, layer, adapterOptions).train(layer.training);
    adapters.set(layer, adapter);
    parent.replaceChild(name, adapter);
  }
  markOnlyLoRATrainable(model);
  return targetLayers.map(({ path }) => path);
}

/**
 * Adds the update of each adapter within a model to the weight of its base, W ← W + scale · B A, and replaces the
 * adapter by the base, as PEFT's `merge_and_unload`. Parameters then have the names that they had before `addLoRA`.
 * Sums are float32, rounded once to the dtype of W. Adapters are merged one after the other and disposed. The bases
 * remain frozen. Returns the paths of the merged layers, none if the model has no adapters.
 *
 * @example
 * ```ts
 * import { init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { addLoRA, GELU, mergeLoRA, Sequential } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using model = new Sequential(new Linear(ctx, 4, 4), new GELU(), new Linear(ctx, 4, 1, { bias: false }));
 * addLoRA(ctx, model, { targets: ["0", "2"], rank: 2 });
 * // … train …
 * mergeLoRA(model); // => ["0", "2"]
 * [...model.stateDict().keys()]; // => ["0.weight", "0.bias", "2.weight"]
 * ```
 * @throws OptionError, without any change, if the model itself is an adapter, if it is sharded, if a base uses the
 * weight of another layer, or if a module stores an adapter in a `#field`. DisposedError if an adapter is disposed.
 */
export function mergeLoRA(model: Module): readonly string[] {
  checkModule("mergeLoRA", model);
  if (model instanceof LoRA) {
    throw new OptionError({
      where: "mergeLoRA",
      expected: "a model that contains adapters",
      received: "a LoRA, which has no parent in which it can be replaced",
      remedy: "call mergeLoRA with the module that has this layer, or call layer.merge()",
    });
  }
  const entries = listAdapters(model);
  const usedWeights = listParametersOutsideAdapters(model);
  for (const { parent, name, path, layer } of entries) {
    const otherAdapters = entries.filter((each) => each.layer !== layer);
    const otherWeights = otherAdapters.map((each) => each.layer.base.weight);
    checkMergeable(path, layer, new Set([...usedWeights, ...otherWeights]));
    // Replaces each adapter by itself first, so that one that cannot be replaced is reported before anything changes.
    parent.replaceChild(name, layer);
  }
  for (const adapter of new Set(entries.map(({ layer }) => layer))) {
    writeMergedWeight(adapter.base.weight, adapter);
    for (const { parent, name, layer } of entries) if (layer === adapter) parent.replaceChild(name, adapter.base);
    adapter.unmerge();
    for (const [, child] of adapter.children()) if (child !== adapter.base) child.dispose();
  }
  return entries.map(({ path }) => path);
}

/**
 * Throws an error, before anything changes, if an adapter cannot be merged into its base. `otherWeights` are those that
 * other layers of the model use.
 */
function checkMergeable(path: string, { base, a, b }: LoRA, otherWeights: ReadonlySet<Tensor>): void {
  const where = `mergeLoRA: "${path}"`;
  const weights = [base.weight, a.weight, b.weight];
  for (const weight of weights) weight.assertNotDisposed(where);
  if (weights.some((weight) => getShard(weight))) {
    throw new OptionError({
      where,
      expected: "a model that is not sharded",
      received: "parameters that fullyShard has sharded",
      remedy: "call saveCheckpoint, load the checkpoint into a model without fullyShard, and merge its adapters",
    });
  }
  if (otherWeights.has(base.weight) || !base.parameters().includes(base.weight)) {
    throw new OptionError({
      where,
      expected: "a base whose weight no other layer uses",
      received: `a ${base.constructor.name} that shares its weight with another layer, which merging would change`,
      remedy: "call merge() of the adapter, which keeps the weight",
    });
  }
}

/** Lists the parameters of the modules within a model, other than adapters and the modules within them. */
function listParametersOutsideAdapters(module: Module): Tensor[] {
  if (module instanceof LoRA) return [];
  const children = module.children().map(([, child]) => child);
  const parametersOfChildren = new Set(children.flatMap((child) => child.parameters()));
  const ownParameters = module.parameters().filter((parameter) => !parametersOfChildren.has(parameter));
  return [...ownParameters, ...children.flatMap(listParametersOutsideAdapters)];
}

interface LayerEntry<L extends Module> {
  readonly parent: Module;
  readonly name: string;
  readonly path: string;
  readonly layer: L;
}

/** Lists all modules within a model, with their parents. A module that several modules share is listed for each. */
function listLayers(model: Module): LayerEntry<Module>[] {
  const namedModules = model.namedModules({ removeDuplicate: false });
  const modulesByPath = new Map(namedModules);
  return namedModules.slice(1).map(([path, layer]) => {
    const nameStart = path.lastIndexOf(".") + 1;
    const parent = modulesByPath.get(path.slice(0, Math.max(0, nameStart - 1)))!;
    return { parent, name: path.slice(nameStart), path, layer };
  });
}

/** Lists the Linear layers within a model, except those of adapters. */
function listLinears(model: Module): LayerEntry<Linear>[] {
  return listLayers(model).filter(
    (entry): entry is LayerEntry<Linear> => entry.layer instanceof Linear && !(entry.parent instanceof LoRA),
  );
}

/** Lists the adapters within a model. */
function listAdapters(model: Module): LayerEntry<LoRA>[] {
  return listLayers(model).filter((entry): entry is LayerEntry<LoRA> => entry.layer instanceof LoRA);
}

/**
 * Returns only the parameters of a model's adapters, with their names in its state dict. Their file has some megabytes
 * and supplements that of the base. For loading, pass the returned tensors as targets.
 *
 * @example
 * ```ts
 * import { init, Linear, loadState } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { GELU, LoRA, loraStateDict, readSafetensors, Sequential, writeSafetensors } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const make = () => new Sequential(new LoRA(ctx, new Linear(ctx, 4, 4), { rank: 2 }), new GELU());
 * using tuned = make();
 * const path = `/tmp/mosaic-lora-${process.pid}.safetensors`;
 * await writeSafetensors(path, loraStateDict(tuned));
 * using model = make();
 * const { tensors } = await readSafetensors(path);
 * loadState("adapters", loraStateDict(model), tensors);
 * [...tensors.keys()]; // => ["0.lora_A.weight", "0.lora_B.weight"]
 * ```
 */
export function loraStateDict(module: Module): ReadonlyMap<string, Tensor> {
  checkModule("loraStateDict", module);
  return new Map(
    module.namedModules().flatMap(([path, adapter]) => {
      if (!(adapter instanceof LoRA)) return [];
      const prefix = path === "" ? "" : `${path}.`;
      return [
        [`${prefix}lora_A.weight`, adapter.a.weight] as const,
        [`${prefix}lora_B.weight`, adapter.b.weight] as const,
      ];
    }),
  );
}

/**
 * Freezes every parameter of a model except those of its adapters, including embeddings, norms and layers without an
 * adapter. Call it before creating the optimizer, which keeps states for the parameters that require a gradient at that
 * time. The equivalent in loralib is mark_only_lora_as_trainable.
 *
 * @example
 * ```ts
 * import { init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { LoRA, markOnlyLoRATrainable, RMSNorm, Sequential } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using model = new Sequential(new RMSNorm(ctx, 4), new LoRA(ctx, new Linear(ctx, 4, 4), { rank: 2 }));
 * markOnlyLoRATrainable(model);
 * model.namedParameters().flatMap(([name, each]) => (each.requiresGrad ? [name] : [])); // => ["1.lora_A.weight", "1.lora_B.weight"]
 * ```
 */
export function markOnlyLoRATrainable(module: Module): void {
  checkModule("markOnlyLoRATrainable", module);
  const loraParameters = new Set(loraStateDict(module).values());
  freeze(module.parameters().filter((parameter) => !loraParameters.has(parameter)));
  for (const parameter of loraParameters) parameter.requiresGrad = true;
}
