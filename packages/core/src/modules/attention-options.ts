import { type AttentionBackend, backendOrLocal } from "../attention/backend.ts";
import { checkTensor } from "../arguments.ts";
import type { Context } from "../context.ts";
import type { DType } from "../storage.ts";
import { DTypeError, OptionError, ShapeError } from "../errors.ts";
import { causal, documents, full } from "../mask/index.ts";
import type { Mask } from "../mask/slice.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf, type ResolvedOptionsOf } from "../options.ts";
import { type Placement, resolvePlacement } from "../placement/placement.ts";
import type { Span } from "../placement/span.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";

/**
 * Turns queries and keys by where they stand, as a rotary embedding does: x [B,H,S,D] whose rows stand at the positions
 * of `spans`, to the same shape. Differentiable in x.
 */
export interface PositionEncoding {
  encode(x: Tensor, spans: readonly Span[]): Tensor;
}

export const attentionModuleOptions = defineOptions("attention module", {
  /** E, the length of the last axis. */
  embedDim: option.integer({ min: 1 }),
  /** H, the query heads. */
  numHeads: option.integer({ min: 1 }),
  /** Key heads, a divisor of numHeads; fewer is grouped-query attention (Ainslie et al. 2023). Default: numHeads. */
  numKvHeads: option.integer({ min: 1, optional: true }),
  /** D, from 1 to 256. Default: embedDim / numHeads. */
  headDim: option.integer({ min: 1, max: 256, optional: true }),
  /**
   * A name registered with the context or the backend itself; with "local" the axis lies whole on every rank. Required where the
   * mesh cuts sequences, by an axis other than "dp" of length > 1. Default: "local".
   */
  backend: option.either(option.string(), option.backend(), { optional: true }),
  /**
   * [rows, columns] of the grid that the backend's ranks form, row-major: `backend: "mesh2d", meshShape: [2, 4]`. Their
   * product is the number of those ranks. Only for a backend that has a grid. Default: the backend's own choice.
   */
  meshShape: option.pair(option.integer({ min: 1 }), {
    expected: "two integers > 0, [rows, columns]",
    optional: true,
  }),
  /** Short for mask: masks.causal(). Default false. */
  causal: option.boolean({ default: false }),
  /** Which keys each query sees, in global positions. Default: all. */
  mask: option.mask({ optional: true }),
  /** How the sequence is cut into shards. Default "contiguous". */
  placement: option.placement({ default: "contiguous" }),
  /** Turns queries and keys by their global positions; `RotaryEmbedding` of @mosaic/nn. Default: nothing does. */
  positions: option.custom("a PositionEncoding", option.hasMethods<PositionEncoding>("encode"), { optional: true }),
  /** Factor on q·k. Default: 1 / √headDim. */
  scale: option.number({ optional: true }),
  /** Whether the projections have biases. Default true. */
  bias: option.boolean({ default: true }),
  /** Keep only the input and compute the rest again in the backward. Default false. */
  useCheckpoint: option.boolean({ default: false }),
  /** Of parameters and inputs. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
  /** Rows of the whole sequence over all shards; needed if shards are unequal. Default: local rows times shards. */
  sequenceLength: option.integer({ min: 1, optional: true }),
});
/** What the attention modules have in common. */
export type AttentionModuleOptions = OptionsOf<typeof attentionModuleOptions>;
type ParsedModuleOptions = ResolvedOptionsOf<typeof attentionModuleOptions>;

export const attentionForwardOptions = defineOptions("forward", {
  /** Which keys each query sees in this call. Default: the module's. */
  mask: option.mask({ optional: true }),
  /**
   * Lengths of documents one after another, each seeing only itself (causally, if the module is causal). Not for a module
   * with a mask of its own: give both as one mask. Default: no documents.
   */
  documents: option.array(option.integer({ min: 0 }), { optional: true }),
  /** Rows of the whole sequence in this call. Default: the module's. */
  sequenceLength: option.integer({ min: 0, optional: true }),
});
/** What one call may change. */
export type AttentionForwardOptions = OptionsOf<typeof attentionForwardOptions>;

/** Options checked, with their defaults. */
export interface ResolvedOptions {
  readonly name: string;
  readonly embedDim: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly backend: AttentionBackend;
  readonly causal: boolean;
  readonly mask: Mask;
  /** Whether the mask was given as such. */
  readonly hasExplicitMask: boolean;
  readonly placement: Placement;
  readonly positions: PositionEncoding | null;
  readonly scale: number;
  readonly bias: boolean;
  readonly useCheckpoint: boolean;
  readonly dtype: DType;
  readonly sequenceLength: number | undefined;
}

/** Checks options against each other, and fills in the defaults that follow from others. */
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
      remedy: "combine them in mask",
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
    scale: options.scale ?? headDim ** -0.5,
    bias: options.bias,
    useCheckpoint: options.useCheckpoint,
    dtype: options.dtype,
    sequenceLength: options.sequenceLength,
  };
}

/** The requested backend, in the requested shape, after its own check of the mesh. */
function resolveBackend(name: string, ctx: Context, options: ParsedModuleOptions): AttentionBackend {
  const { backend: asked, meshShape } = options;
  const found = backendOrLocal(name, ctx, asked);
  if (meshShape !== undefined && !found.withShape) {
    throw new OptionError({
      where: `${name}: meshShape`,
      expected: 'a backend whose ranks form a grid, such as "mesh2d"',
      received: `"${found.name}"`,
      remedy: 'set backend: "mesh2d" with meshShape, or omit meshShape',
    });
  }
  const backend = meshShape === undefined ? found : found.withShape!(meshShape);
  backend.check?.(ctx);
  return backend;
}

function resolveHeadDim(name: string, { embedDim, numHeads, headDim }: ParsedModuleOptions): number {
  const size = headDim ?? embedDim / numHeads;
  if (Number.isInteger(size) && size >= 1 && size <= 256) return size;
  throw new OptionError({
    where: name,
    expected: "embedDim / numHeads, the head size, an integer from 1 to 256",
    received: headDim === undefined ? `${embedDim} / ${numHeads}` : `headDim ${headDim}`,
    remedy: "change numHeads, or set headDim",
  });
}

type ForwardMask = Pick<ResolvedOptionsOf<typeof attentionForwardOptions>, "mask" | "documents">;

/** The mask of one call. */
export function resolveMask({ name, causal, mask, hasExplicitMask }: ResolvedOptions, call: ForwardMask): Mask {
  if (!call.documents) return call.mask ?? mask;
  if (!call.mask && !hasExplicitMask) return documents(call.documents, causal ? "causal" : "full");
  throw new OptionError({
    where: `${name}.forward`,
    expected: "either mask or documents",
    received: call.mask ? "both" : `documents in a module with mask ${mask.name}`,
    remedy: "combine them in mask",
  });
}

/** x must be [..,E] of the module's dtype. */
export function checkInput({ name, dtype }: ResolvedOptions, x: Tensor, embedDim: number): void {
  checkTensor(name, x);
  if (x.shape.at(-1) !== embedDim) {
    throw new ShapeError({
      where: name,
      expected: `x [..,${embedDim}], embedDim last`,
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
