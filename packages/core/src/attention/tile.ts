import { checkTensor } from "../arguments.ts";
import type { Device } from "../device.ts";
import { expectValue, OptionError, ShapeError } from "../errors.ts";
import type { KernelFeature } from "../kernels/kernels.ts";
import type { Slice } from "../mask/slice.ts";
import { verifyWellFormed } from "../mask/verify.ts";
import { type Span, spansLength } from "../placement/span.ts";
import { verifySpan } from "../placement/verify.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";

// Shapes: B batch, H heads, Hkv key heads, S local sequence, D head size, Dv that of the values.

/** Attention over some set of keys: out [B,H,S,Dv] and lse [B,H,S], float32; lse is −Infinity where nothing was seen yet. */
export interface AttentionState {
  readonly out: Tensor;
  readonly lse: Tensor;
}

/** Keys k [B,Hkv,S,D] and values v [B,Hkv,S,Dv]. Where Dv is not D, it takes a device with the feature `valueHeadSize`. */
export interface KvBlock {
  readonly k: Tensor;
  readonly v: Tensor;
}

/** What the backward needs of the finished forward: dOut [B,H,S,Dv], lse [B,H,S] and delta = rowsum(dOut·out) [B,H,S]. */
export interface SavedRows {
  readonly dOut: Tensor;
  readonly lse: Tensor;
  readonly delta: Tensor;
}

/** Gradients to add to, float32: dq [B,H,Sq,D], dk [B,Hkv,Sk,D], dv [B,Hkv,Sk,Dv]. */
export interface QkvGrads {
  readonly dq: Tensor;
  readonly dk: Tensor;
  readonly dv: Tensor;
}

/**
 * What an attention call asks for beyond plain attention. Each is off if absent, and is a feature that a device may not have
 * (`Device.features`): then the call is refused. All of it refers to global indices, so that it means the same on every mesh.
 */
export interface AttentionModifiers {
  /** Scores become softcap · tanh(score / softcap), after `scale` and before slopes; > 0. Gemma 2 (2024). */
  readonly softcap?: number | undefined;
  /** ALiBi (Press et al. 2022): scores lose slope · |query − key|. Slopes [H], float32, of all heads of the model. */
  readonly slopes?: Tensor | null | undefined;
  readonly dropout?: AttentionDropout | null | undefined;
  /** What each sample of the batch sees beside what the call's mask shows to all: disjoint slices, and disjoint from the mask. */
  readonly sampleMasks?: readonly (readonly Slice[])[] | undefined;
  /** Where the batch and the heads of this call begin among all: with heads or samples shared out, not at 0. */
  readonly origin?: HeadOrigin | undefined;
}

/**
 * Dropout of attention weights, after the softmax: those kept count 1 / (1 − probability), lse stays that of all. Which are
 * kept follows from seed, stream and the global batch, head, query and key: it is the same on every mesh.
 */
export interface AttentionDropout {
  /** Of a weight to become 0: in [0, 1). */
  readonly probability: number;
  readonly seed: number;
  readonly stream: number;
}

/** The global index of a call's first batch element and of its first query head. */
export interface HeadOrigin {
  readonly batch: number;
  readonly head: number;
}

/** What a kernel must know of a block of queries and keys beyond their values. Kernels mask by global position. */
export interface Tile {
  /** Global positions of the rows of q, in order; lengths sum to Sq. */
  readonly q: readonly Span[];
  /** Global positions of the rows of k and v, in order; lengths sum to Sk. */
  readonly k: readonly Span[];
  /** Disjoint slices. */
  readonly mask: readonly Slice[];
  /** Factor on q·k before the softmax. */
  readonly scale: number;
  readonly modifiers?: AttentionModifiers | undefined;
}

/**
 * Throws a ShapeError unless a tile fits its tensors and is one that kernels can work with: spans of integers with a step
 * of at least 1, as many positions as rows, and slices of integers with a type. The kernels `attend` and `attendBackward`
 * of native devices call this first. Whether slices are disjoint is not looked at here: see `resolveSlices`.
 *
 * @example
 * ```ts
 * import { checkTile } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = device.empty([1, 1, 8, 64], "float32");
 * const spans = [{ start: 0, length: 8, step: 1 }];
 * checkTile(x, { k: x, v: x }, { q: spans, k: spans, mask: [], scale: 1 }); // => undefined
 * checkTile(x, { k: x, v: x }, { q: spans, k: [{ start: 0, length: 8, step: 0 }], mask: [], scale: 1 }); // throws step 0
 * ```
 */
export function checkTile(q: Tensor, kv: KvBlock, tile: Tile): void {
  for (const x of [q, kv?.k]) checkTensor("attention", x, 4);
  expectValue("attention", typeof tile === "object" && tile !== null, "a Tile", tile);
  expectValue("attention: scale", typeof tile.scale === "number", "a number", tile.scale);
  const { k } = kv;
  checkPositions("attention: queries", tile.q, q.shape[2]!);
  checkPositions("attention: keys", tile.k, k.shape[2]!);
  verifyWellFormed("attention: mask", tile.mask);
  for (const slices of tile.modifiers?.sampleMasks ?? []) verifyWellFormed("attention: sample mask", slices);
}

function checkPositions(where: string, spans: readonly Span[], rows: number): void {
  expectValue(where, Array.isArray(spans), "an array of spans { start, length, step }", spans);
  for (const span of spans) verifySpan(where, span);
  const count = spansLength(spans);
  if (count === rows) return;
  throw new ShapeError({ where, expected: `spans of ${rows} positions, one per row`, received: String(count) });
}

/**
 * Throws an OptionError if an attention call asks for a feature that the device does not have: what joined the contract
 * later is refused until a device has it, never ignored. The kernels `attend` and `attendBackward` of every device call this
 * first.
 *
 * @example
 * ```ts
 * import { checkFeatures } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using k = device.empty([1, 1, 8, 64], "float32");
 * const plain = { q: [], k: [], mask: [], scale: 1 };
 * checkFeatures(device, { k, v: k }, plain); // => undefined
 * checkFeatures({ type: "mine", index: 0 }, { k, v: k }, { ...plain, modifiers: { softcap: 30 } }); // throws attention on mine:0
 * ```
 */
export function checkFeatures(device: Pick<Device, "type" | "index" | "features">, kv: KvBlock, tile: Tile): void {
  for (const x of [kv?.k, kv?.v]) checkTensor("attention", x, 4);
  expectValue("attention", typeof tile === "object" && tile !== null, "a Tile", tile);
  if (tile.modifiers === undefined && kv.k.shape[3] === kv.v.shape[3]) return;
  for (const [feature, received] of requestedFeatures(kv, tile.modifiers ?? {})) {
    if (device.features?.includes(feature)) continue;
    throw new OptionError({
      where: `attention on ${device.type}:${device.index}`,
      expected: `a call without ${feature}, which this device does not support`,
      received,
      remedy: `omit it, or use a device whose \`features\` include "${feature}"`,
    });
  }
}

function requestedFeatures({ k, v }: KvBlock, modifiers: AttentionModifiers): readonly [KernelFeature, string][] {
  const { softcap, slopes, dropout, sampleMasks } = modifiers;
  const features: [KernelFeature, string][] = [];
  if (softcap !== undefined) features.push(["softcap", `softcap ${softcap}`]);
  if (slopes) features.push(["slopes", `slopes ${formatShape(slopes.shape)}`]);
  if (dropout) features.push(["dropout", `dropout of probability ${dropout.probability}`]);
  if (sampleMasks) features.push(["sampleMasks", `sampleMasks of ${sampleMasks.length} samples`]);
  const [size, valueSize] = [k.shape[3]!, v.shape[3]!];
  if (size !== valueSize) features.push(["valueHeadSize", `keys of head size ${size}, values of ${valueSize}`]);
  return features;
}
