import type { AttentionOptions } from "../attention/attention.ts";
import { type AttentionBackend, resolveBackendOrLocal } from "../attention/backend.ts";
import { attentionModifierOptions } from "../attention/modifiers.ts";
import { checkTensor } from "../arguments.ts";
import type { Context } from "../context.ts";
import type { DType } from "../storage.ts";
import { DTypeError, OptionError, ShapeError } from "../errors.ts";
import { causal, documents, full } from "../mask/index.ts";
import { batchMaskOptions } from "../mask/samples.ts";
import type { Mask } from "../mask/slice.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf, type ResolvedOptionsOf } from "../options.ts";
import { type Placement, resolvePlacement } from "../placement/placement.ts";
import type { Span } from "../placement/span.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { cacheOption } from "./attention-cache.ts";
import type { Module } from "./module.ts";
import { createParameter } from "./parameters.ts";

/**
 * Encodes positions in queries and keys, as a rotary embedding does. `encode` maps x [B,H,S,D], whose rows have the
 * positions of `spans` in a sequence of `sequenceLength` rows over all ranks, to the same shape. Differentiable in x.
 */
export interface PositionEncoding {
  encode(x: Tensor, spans: readonly Span[], sequenceLength: number): Tensor;
}

/** A module that normalizes heads, [..,D] to the same shape, such as `RMSNorm` of @mosaic/nn. */
export interface HeadNorm extends Module {
  forward(x: Tensor): Tensor;
}

const isHeadNorm = option.hasMethods<HeadNorm>("forward", "namedParameters", "stateDict");

export const attentionModuleOptions = defineOptions("attention module", {
  /** E, the length of the last axis. */
  embedDim: option.integer({ min: 1 }),
  /** H, the number of query heads. */
  numHeads: option.integer({ min: 1 }),
  /**
   * Number of KV heads, a divisor of numHeads. If smaller than numHeads, this is grouped-query attention (Ainslie et
   * al. 2023). Default: numHeads.
   */
  numKvHeads: option.integer({ min: 1, optional: true }),
  /** D, from 1 to 256. Default: embedDim / numHeads. */
  headDim: option.integer({ min: 1, max: 256, optional: true }),
  /**
   * The name of a backend registered in the context, or a backend. With "local", every rank holds the complete axis.
   * Required if the mesh shards sequences, which any axis of length > 1 does unless it is data-parallel. Default:
   * "local".
   */
  backend: option.either(option.string(), option.backend(), { optional: true }),
  /**
   * [rows, columns] of the grid that the backend's ranks form, row-major: `backend: "mesh2d", meshShape: [2, 4]`. The
   * product is the number of ranks. Only for backends with a grid. Default: chosen by the backend.
   */
  meshShape: option.pair(option.integer({ min: 1 }), {
    expected: "two integers > 0, [rows, columns]",
    optional: true,
  }),
  /** Short for mask: masks.causal(). Default false. */
  causal: option.boolean({ default: false }),
  /** The keys that are visible to each query, in global positions. Default: all. */
  mask: option.mask({ optional: true }),
  /** Placement of the sequence: how it is divided into shards. Default "contiguous". */
  placement: option.placement({ default: "contiguous" }),
  /**
   * Encodes global positions in queries and keys, such as `RotaryEmbedding` of @mosaic/nn. Default: no position
   * encoding.
   */
  positions: option.custom("a PositionEncoding", option.hasMethods<PositionEncoding>("encode"), { optional: true }),
  /**
   * Normalizes each query head, [..,headDim], before positions are encoded, as in Qwen 3 and Gemma 3:
   * `new RMSNorm(ctx, headDim)` of @mosaic/nn. It becomes the child q_norm of the attention module. Default: no norm.
   */
  qNorm: option.custom("a Module that maps [..,headDim] to the same shape", isHeadNorm, { optional: true }),
  /** As qNorm, for each KV head; it becomes the child k_norm. Default: no norm. */
  kNorm: option.custom("a Module that maps [..,headDim] to the same shape", isHeadNorm, { optional: true }),
  /** Factor on q·k. Default: 1 / √headDim. */
  scale: option.number({ optional: true }),
  /**
   * Whether every head has a sink, a learned logit beside its scores: the parameter `sinks` [H] of gpt-oss, initialized
   * with std 0.02. Default false.
   */
  sinks: option.boolean({ default: false }),
  softcap: attentionModifierOptions.fields.softcap,
  alibiSlopes: attentionModifierOptions.fields.alibiSlopes,
  /**
   * Probability of zeroing an attention weight after the softmax during training: `dropout` of `attention`. After
   * `eval()` nothing is dropped. A forward with a cache requires `eval()`. Default 0.
   */
  dropout: option.number({ min: 0, below: 1, default: 0 }),
  /** Whether the projections have biases. Default true. */
  bias: option.boolean({ default: true }),
  /**
   * Whether the output projection has a bias. In Qwen 2, only the projections of queries, keys and values have one.
   * Default: bias.
   */
  outBias: option.boolean({ optional: true }),
  /**
   * Save only the input and recompute the rest in the backward. "keepAttention" also saves (out, lse) of attention, so
   * that attention is neither recomputed nor communicated again. Default false.
   */
  useCheckpoint: option.either(option.boolean(), option.oneOf(["keepAttention"]), { default: false }),
  /** The dtype of parameters and inputs. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
  /** Length of the whole sequence over all shards. Required if shards are unequal. Default: local rows times shards. */
  sequenceLength: option.integer({ min: 1, optional: true }),
});
/** Options that all attention modules have in common. */
export type AttentionModuleOptions = OptionsOf<typeof attentionModuleOptions>;
type ParsedModuleOptions = ResolvedOptionsOf<typeof attentionModuleOptions>;

export const attentionForwardOptions = defineOptions("MultiAxisAttention.forward", {
  /**
   * The keys that are visible to each query in this call: one mask, or one per sample of the batch. Default: the
   * module's mask.
   */
  mask: option.either(option.mask(), option.array(option.mask()), { optional: true }),
  /**
   * Number of tokens of each sample, `[5, 8]`, if sequences are padded to one length. Padding yields 0. Default: no
   * padding.
   */
  lengths: option.array(option.integer({ min: 0 }), { optional: true }),
  /** The side of the padding: before the tokens ("left") or after them ("right"). Default "right". */
  padding: batchMaskOptions.fields.padding,
  /**
   * Placement of the sequence in this call, for example the result of `dispatch` for its mask. Default: the module's
   * placement.
   */
  placement: option.placement({ optional: true }),
  /**
   * Lengths of packed documents, each of which attends only to itself (causally, if the module is causal). Not for a
   * module with the option `mask`: combine both in one mask. Default: no documents.
   */
  documents: option.array(option.integer({ min: 0 }), { optional: true }),
  /** Length of the whole sequence in this call. Default: the module's length. */
  sequenceLength: option.integer({ min: 0, optional: true }),
  /**
   * Keys and values of earlier tokens, to which those of this call are appended: `cache.layer(0, sequences)` of a
   * KvCache. Only for attention along a single axis. Default: none.
   */
  cache: cacheOption,
});
/** Options of one call, which override those of the module. */
export type AttentionForwardOptions = OptionsOf<typeof attentionForwardOptions>;

/** Validated options with defaults. */
export interface ResolvedOptions {
  readonly name: string;
  readonly embedDim: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly backend: AttentionBackend;
  readonly causal: boolean;
  readonly mask: Mask;
  /** Whether the option `mask` was passed. */
  readonly hasExplicitMask: boolean;
  readonly placement: Placement;
  readonly positions: PositionEncoding | null;
  readonly qNorm: HeadNorm | null;
  readonly kNorm: HeadNorm | null;
  readonly scale: number;
  readonly sinks: boolean;
  readonly softcap: number | undefined;
  readonly alibiSlopes: Tensor | undefined;
  readonly dropout: number;
  readonly bias: boolean;
  readonly outBias: boolean;
  readonly useCheckpoint: boolean | "keepAttention";
  readonly dtype: DType;
  readonly sequenceLength: number | undefined;
}

/** Checks the compatibility of options, and fills in defaults that depend on other options. */
export function resolveOptions(name: string, ctx: Context, options: ParsedModuleOptions): ResolvedOptions {
  const { embedDim, numHeads, numKvHeads = numHeads, causal: isCausal, mask } = options;
  const headDim = resolveHeadDim(name, options);
  if (numHeads % numKvHeads !== 0) {
    throw new OptionError({
      where: name,
      expected: "numHeads divisible by numKvHeads",
      received: `${numHeads} and ${numKvHeads}`,
    });
  }
  if (isCausal && mask) {
    throw new OptionError({
      where: name,
      expected: "either causal or mask",
      received: "both",
      remedy: "pass one mask: masks.and(masks.causal(), mask)",
    });
  }
  return {
    name,
    embedDim,
    numHeads,
    numKvHeads,
    headDim,
    backend: resolveBackend(name, ctx, options),
    causal: isCausal,
    mask: mask ?? (isCausal ? causal() : full()),
    hasExplicitMask: mask !== undefined,
    placement: resolvePlacement(options.placement),
    positions: options.positions ?? null,
    qNorm: options.qNorm ?? null,
    kNorm: options.kNorm ?? null,
    scale: options.scale ?? headDim ** -0.5,
    sinks: options.sinks,
    softcap: options.softcap,
    alibiSlopes: options.alibiSlopes,
    dropout: options.dropout,
    bias: options.bias,
    outBias: options.outBias ?? options.bias,
    useCheckpoint: options.useCheckpoint,
    dtype: options.dtype,
    sequenceLength: options.sequenceLength,
  };
}

/** Returns the requested backend with the requested grid shape, after the backend has checked the mesh. */
function resolveBackend(name: string, ctx: Context, options: ParsedModuleOptions): AttentionBackend {
  const { backend: requestedBackend, meshShape } = options;
  const resolvedBackend = resolveBackendOrLocal(name, ctx, requestedBackend);
  if (meshShape !== undefined && !resolvedBackend.withShape) {
    throw new OptionError({
      where: `${name}: meshShape`,
      expected: 'a backend whose ranks form a grid, such as "mesh2d"',
      received: `"${resolvedBackend.name}"`,
      remedy: 'set backend: "mesh2d" with meshShape, or omit meshShape',
    });
  }
  const backend = meshShape === undefined ? resolvedBackend : resolvedBackend.withShape!(meshShape);
  backend.check?.(ctx);
  return backend;
}

function resolveHeadDim(name: string, { embedDim, numHeads, headDim }: ParsedModuleOptions): number {
  const size = headDim ?? embedDim / numHeads;
  if (Number.isInteger(size) && size >= 1 && size <= 256) return size;
  throw new OptionError({
    where: name,
    expected: "an integer head size (headDim or embedDim / numHeads) from 1 to 256",
    received: headDim === undefined ? `${embedDim} / ${numHeads}` : `headDim ${headDim}`,
    remedy: "change numHeads, or set headDim",
  });
}

type ForwardOptions = ResolvedOptionsOf<typeof attentionForwardOptions>;
/** The mask options of a call of `attention`. */
export type BatchMask = OptionsOf<typeof batchMaskOptions>;

/** Returns the mask options of one self-attention call. */
export function resolveMask(settings: ResolvedOptions, call: ForwardOptions): BatchMask {
  const { lengths, padding } = call;
  const mask = selectMask(settings, call);
  return { mask, padding, ...(lengths && { lengths: { queries: lengths, keys: lengths } }) };
}

function selectMask(
  { name, causal, mask, hasExplicitMask }: ResolvedOptions,
  call: Pick<ForwardOptions, "mask" | "documents">,
): Mask | readonly Mask[] {
  if (!call.documents) return call.mask ?? mask;
  if (!call.mask && !hasExplicitMask) return documents(call.documents, causal ? "causal" : "full");
  throw new OptionError({
    where: `${name}.forward`,
    expected: "either mask or documents",
    received: call.mask ? "both" : `documents in a module with mask ${mask.name}`,
    remedy: "pass one mask: masks.and(mask, masks.documents(lengths))",
  });
}

/** Throws an OptionError if a cache is passed, because a cache supports only a single axis. */
export function rejectCache({ name }: ResolvedOptions, { cache }: Pick<ForwardOptions, "cache">): void {
  if (!cache) return;
  throw new OptionError({
    where: `${name}.forward: cache`,
    expected: "no cache",
    received: "one",
    remedy: "use MultiAxisAttention",
  });
}

/** Throws an OptionError for a module with dropout, because attention with a cache drops nothing. */
export function rejectDropout({ name, dropout }: ResolvedOptions): void {
  if (dropout === 0) return;
  throw new OptionError({
    where: `${name}.forward: cache`,
    expected: "a module without dropout, or in evaluation mode",
    received: `a module with dropout ${dropout} in training mode`,
    remedy: "call eval() before a forward with a cache",
  });
}

/** Returns the single mask of a call with a cache. Throws unless the cache has one sequence per sample. */
export function resolveCachedMask(settings: ResolvedOptions, call: ForwardOptions, batch: number): Mask {
  const { name } = settings;
  const mask = selectMask(settings, call);
  if (settings.alibiSlopes) {
    throw new OptionError({
      where: `${name}.forward: cache`,
      expected: "a module without alibiSlopes",
      received: "a module with alibiSlopes",
    });
  }
  const unsupportedOptions = (["lengths", "documents"] as const).filter((each) => call[each] !== undefined);
  if (unsupportedOptions.length > 0 || !isSingleMask(mask)) {
    throw new OptionError({
      where: `${name}.forward`,
      expected: "at most one mask, shared by all samples, in a call with a cache",
      received: unsupportedOptions.length > 0 ? unsupportedOptions.join(" and ") : "a mask for each sample",
      remedy: "pass the lengths of padded sequences to cache.layer(…)",
    });
  }
  const sequences = call.cache!.starts.length;
  if (sequences === batch) return mask;
  throw new ShapeError({
    where: `${name}.forward`,
    expected: `x with batch size ${sequences}, one sample per sequence of the cache`,
    received: String(batch),
  });
}

function isSingleMask(mask: Mask | readonly Mask[]): mask is Mask {
  return !Array.isArray(mask);
}

/** Creates the sinks of a module's heads, [H]; null if it has none. Collective. */
export function createSinks(ctx: Context, { sinks, numHeads, dtype }: ResolvedOptions): Tensor | null {
  return sinks ? createParameter(ctx, [numHeads], { initial: { kind: "normal", mean: 0, std: 0.02 }, dtype }) : null;
}

/** Returns the options for scores and weights, which all `attention` calls of a module share. */
export function scoreOptions(
  { scale, softcap, alibiSlopes, dropout }: ResolvedOptions,
  { sinks, training }: { readonly sinks: Tensor | null; readonly training: boolean },
): Pick<AttentionOptions, "scale" | "softcap" | "alibiSlopes" | "dropout" | "sinks"> {
  return { scale, softcap, alibiSlopes, dropout: training ? dropout : 0, ...(sinks && { sinks }) };
}

/** Throws unless x is [..,E] with the module's dtype. */
export function checkInput({ name, dtype }: ResolvedOptions, x: Tensor, embedDim: number): void {
  checkTensor(name, x);
  if (x.shape.at(-1) !== embedDim) {
    throw new ShapeError({
      where: name,
      expected: `x [..,${embedDim}] with embedDim as the last axis`,
      received: formatShape(x.shape),
    });
  }
  if (x.dtype !== dtype) {
    throw new DTypeError({
      where: name,
      expected: dtype,
      received: x.dtype,
      remedy: "convert x with to(dtype), or construct the module with that dtype",
    });
  }
}
