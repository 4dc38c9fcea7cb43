import type { AttentionBackend } from "../attention/backend.ts";
import { checkMask } from "../attention/check.ts";
import type { Context } from "../context.ts";
import type { DType } from "../dtype.ts";
import { DTypeError, OptionError, ShapeError } from "../errors.ts";
import { causal, documents, full } from "../mask/masks.ts";
import type { Mask } from "../mask/slice.ts";
import { checkOptionNames, checkPositive } from "../options.ts";
import { type Placement, type PlacementName, placementOf } from "../placement/placement.ts";
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

/** What the attention modules have in common. */
export interface AttentionModuleOptions {
  /** E, the length of the last axis. */
  readonly embedDim: number;
  /** H, the query heads. */
  readonly numHeads: number;
  /** Key heads; a divisor of numHeads, default numHeads. Fewer is grouped-query attention (Ainslie et al. 2023). */
  readonly numKvHeads?: number;
  /** D, from 1 to 256. Default embedDim / numHeads. */
  readonly headDim?: number;
  /** A name registered with the context or the backend itself. Default "local": the axis lies whole on every rank. */
  readonly backend?: string | AttentionBackend;
  /**
   * [rows, columns] of the grid that the backend's ranks form, row-major: `backend: "mesh2d", meshShape: [2, 4]`. Their
   * product is the number of those ranks. Default: the backend's own choice. Only for a backend that has a grid.
   */
  readonly meshShape?: readonly [rows: number, columns: number];
  /** Short for mask: masks.causal(). */
  readonly causal?: boolean;
  /** Which keys each query sees, in global positions. Default: all. */
  readonly mask?: Mask;
  /** How the sequence is cut into shards. Default "contiguous". */
  readonly placement?: PlacementName | Placement;
  /** Turns queries and keys by their global positions; `RotaryEmbedding` of @mosaic/nn. Default: nothing does. */
  readonly positions?: PositionEncoding;
  /** Factor on q·k. Default 1 / √headDim. */
  readonly scale?: number;
  /** Whether the projections have biases. Default true. */
  readonly bias?: boolean;
  /** Keep only the input and compute the rest again in the backward. Default false. */
  readonly useCheckpoint?: boolean;
  /** Of parameters and inputs. Default "float32". */
  readonly dtype?: DType;
  /** Rows of the whole sequence over all shards. Default: local rows times shards; needed if shards are unequal. */
  readonly sequenceLength?: number;
}

/** What one call may change. */
export interface AttentionForwardOptions {
  /** Instead of the module's mask. */
  readonly mask?: Mask;
  /**
   * Lengths of documents one after another, each seeing only itself (causally, if the module is causal). Not for a module
   * with a mask of its own: give both as one mask.
   */
  readonly documents?: readonly number[];
  /** Instead of the module's. */
  readonly sequenceLength?: number;
}

const commonNames = [
  "embedDim",
  "numHeads",
  "numKvHeads",
  "headDim",
  "backend",
  "meshShape",
  "causal",
  "mask",
  "placement",
  "positions",
  "scale",
  "bias",
  "useCheckpoint",
  "dtype",
  "sequenceLength",
] as const satisfies readonly (keyof AttentionModuleOptions)[];

/** Options checked, with their defaults. */
export interface ResolvedOptions {
  readonly name: string;
  readonly embed: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly backend: AttentionBackend;
  readonly causal: boolean;
  readonly mask: Mask;
  /** Whether the mask was given as such. */
  readonly ownMask: boolean;
  readonly placement: Placement;
  readonly positions: PositionEncoding | null;
  readonly scale: number;
  readonly bias: boolean;
  readonly useCheckpoint: boolean;
  readonly dtype: DType;
  readonly sequenceLength: number | undefined;
}

/** Checks options against each other and fills in defaults; `own` names what a module takes beyond the common ones. */
export function resolveOptions(
  name: string,
  ctx: Context,
  given: { options: AttentionModuleOptions; own: string[] },
): ResolvedOptions {
  const { options, own } = given;
  ctx.assertOpen(name);
  checkOptionNames(name, options, [...own, ...commonNames]);
  const { embedDim, numHeads, numKvHeads = numHeads } = options;
  for (const [option, value] of Object.entries({ embedDim, numHeads, numKvHeads })) checkPositive(name, option, value);
  const headDim = headDimOf(name, options);
  if (numHeads % numKvHeads !== 0) {
    throw new OptionError({
      where: name,
      expected: "numKvHeads a divisor of numHeads",
      received: `${numKvHeads} of ${numHeads}`,
    });
  }
  if (options.causal && options.mask) {
    throw new OptionError({
      where: name,
      expected: "causal or mask",
      received: "both",
      remedy: "put all into the mask",
    });
  }
  if (options.mask !== undefined) checkMask(name, options.mask);
  if (options.sequenceLength !== undefined) checkPositive(name, "sequenceLength", options.sequenceLength);
  return {
    name,
    embed: embedDim,
    numHeads,
    numKvHeads,
    headDim,
    backend: backendOf(name, ctx, options),
    causal: options.causal ?? false,
    mask: options.mask ?? (options.causal ? causal() : full()),
    ownMask: options.mask !== undefined,
    placement: placementOf(options.placement ?? "contiguous"),
    positions: options.positions ?? null,
    scale: options.scale ?? headDim ** -0.5,
    bias: options.bias ?? true,
    useCheckpoint: options.useCheckpoint ?? false,
    dtype: options.dtype ?? "float32",
    sequenceLength: options.sequenceLength,
  };
}

/** The backend that is asked for, in the shape that is asked for, after its own look at the mesh. */
function backendOf(name: string, ctx: Context, options: AttentionModuleOptions): AttentionBackend {
  const { backend: asked = "local", meshShape } = options;
  const found = ctx.backend(asked);
  if (meshShape !== undefined && !found.withShape) {
    throw new OptionError({
      where: `${name}: meshShape`,
      expected: 'a backend whose ranks form a grid, such as "mesh2d"',
      received: `"${found.name}"`,
      remedy: 'give backend: "mesh2d" beside meshShape, or leave meshShape out',
    });
  }
  const backend = meshShape === undefined ? found : found.withShape!(meshShape);
  backend.check?.(ctx);
  return backend;
}

function headDimOf(name: string, { embedDim, numHeads, headDim }: AttentionModuleOptions): number {
  const size = headDim ?? embedDim / numHeads;
  if (Number.isInteger(size) && size >= 1 && size <= 256) return size;
  throw new OptionError({
    where: name,
    expected: "embedDim / numHeads, the head size, a whole number from 1 to 256",
    received: headDim === undefined ? `${embedDim} / ${numHeads}` : `headDim ${headDim}`,
    remedy: "change numHeads, or give headDim",
  });
}

/** The mask of one call. */
export function maskOf({ name, causal, mask, ownMask }: ResolvedOptions, call: AttentionForwardOptions): Mask {
  if (!call.documents) return call.mask ?? mask;
  if (!call.mask && !ownMask) return documents(call.documents, causal ? "causal" : "full");
  throw new OptionError({
    where: `${name}.forward`,
    expected: "mask or documents",
    received: call.mask ? "both" : `documents, for a module with the mask ${mask.name}`,
    remedy: "put all into the mask",
  });
}

/** x must be [..,E] of the module's dtype. */
export function checkInput({ name, dtype }: ResolvedOptions, x: Tensor, embed: number): void {
  x.assertUsable(name);
  if (x.shape.at(-1) !== embed) {
    throw new ShapeError({
      where: name,
      expected: `x [..,${embed}], embedDim last`,
      received: formatShape(x.shape),
    });
  }
  if (x.dtype !== dtype) {
    throw new DTypeError({
      where: name,
      expected: dtype,
      received: x.dtype,
      remedy: "convert x with to(dtype), or give the module that dtype",
    });
  }
}
