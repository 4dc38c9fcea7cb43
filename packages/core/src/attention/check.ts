import { checkDevice, checkTensor } from "../arguments.ts";
import type { Context } from "../context.ts";
import { type Device, formatDevice } from "../device.ts";
import { DTypeError, expectValue, OptionError, ShapeError } from "../errors.ts";
import type { KernelFeature } from "../kernels/kernels.ts";
import type { Slice } from "../mask/slice.ts";
import { verifySampleMasks, verifyWellFormed } from "../mask/verify.ts";
import type { Layout } from "../placement/placement.ts";
import { type Span, spansLength } from "../placement/span.ts";
import { verifyLayout, verifySpan } from "../placement/verify.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import type { AttentionBackend } from "./backend.ts";
import { checkSlopes } from "./modifiers.ts";
import type { AttentionModifiers, KvBlock, Tile } from "./tile.ts";

interface AttentionArguments {
  readonly ctx: Context;
  readonly backend: AttentionBackend;
  readonly queries: Layout;
  readonly keys: Layout;
}

/** The largest supported head dimension. */
const MAX_HEAD_DIM = 256;

/**
 * Validates the call on this rank before any rank waits for a peer. The options were parsed before, so this checks only
 * what parsing does not.
 */
export function checkAttention(
  where: string,
  call: AttentionArguments,
  qkv: { q: Tensor; k: Tensor; v: Tensor },
): void {
  checkTensors(where, qkv);
  checkAxes(where, call);
  verifyLayout(`${where}: queries`, call.queries, call.ctx.mesh.shape);
  verifyLayout(`${where}: keys`, call.keys, call.ctx.mesh.shape);
  checkRows(where, "queries", { shape: qkv.q.shape, layout: call.queries, call });
  checkRows(where, "keys", { shape: qkv.k.shape, layout: call.keys, call });
}

/** Returns a backend's name and the axes along which it communicates, for example `ring(sp)`. */
export function backendLabel({ name, axes }: AttentionBackend): string {
  return axes.length > 0 && !name.includes("(") ? `${name}(${axes.join(",")})` : name;
}

function checkTensors(where: string, { q, k, v }: { q: Tensor; k: Tensor; v: Tensor }): void {
  const [b, h, , d] = q.shape;
  const [, numKvHeads] = k.shape;
  const areRank4 = q.rank === 4 && k.rank === 4 && v.rank === 4;
  const isValidHeadDim = (size: number): boolean => size >= 1 && size <= MAX_HEAD_DIM;
  const areCompatibleShapes =
    areRank4 && k.shape[0] === b && k.shape[3] === d && [0, 1, 2].every((i) => k.shape[i] === v.shape[i]);
  if (!areCompatibleShapes || h! % numKvHeads! !== 0 || !isValidHeadDim(d!) || !isValidHeadDim(v.shape[3]!)) {
    throw new ShapeError({
      where,
      expected: `q [B,H,Sq,D], k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv], H a multiple of Hkv, D and Dv from 1 to ${MAX_HEAD_DIM}`,
      received: `q ${formatShape(q.shape)}, k ${formatShape(k.shape)}, v ${formatShape(v.shape)}`,
      remedy: "split the heads and shard the sequence before attention",
    });
  }
  checkDevice(where, q, k);
  checkDevice(where, q, v);
  if (q.dtype === k.dtype && k.dtype === v.dtype) return;
  throw new DTypeError({
    where,
    expected: "the same dtype for q, k and v",
    received: `${q.dtype}, ${k.dtype}, ${v.dtype}`,
    remedy: "convert with to(dtype)",
  });
}

function checkRows(
  where: string,
  operandName: "queries" | "keys",
  { shape, layout, call }: { shape: readonly number[]; layout: Layout; call: AttentionArguments },
): void {
  const rows = spansLength(layout.spans(call.ctx.mesh.coordinate));
  if (shape[2] === rows) return;
  throw new ShapeError({
    where: `${where}: ${operandName} ${formatShape(shape)}`,
    expected: `${rows} rows, this rank's shard of ${layout.length} rows`,
    received: String(shape[2]),
    remedy: "pass the placement and the length that the sequence was sharded with",
  });
}

/**
 * Checks the sharded axes. Keys sharded along an axis that the backend does not gather would be missing. Keys not
 * sharded along an axis that it gathers would be counted more than once.
 */
function checkAxes(where: string, { backend, queries, keys }: AttentionArguments): void {
  for (const layout of [queries, keys]) {
    if (layout.axes.length === backend.axes.length && layout.axes.every((axis) => backend.axes.includes(axis)))
      continue;
    throw new OptionError({
      where,
      expected: `a sequence sharded along the backend's axes, [${backend.axes.join(", ")}]`,
      received: `a sequence sharded along [${layout.axes.join(", ")}]`,
      remedy:
        layout.axes.length === 0
          ? `pass the layout of this rank's shard as queries and keys: layoutOf({ mesh: ctx.mesh.shape, axes: ${JSON.stringify(backend.axes)}, length })`
          : "create the layouts of queries and keys with the backend's axes, or use a backend along these axes",
    });
  }
}

/**
 * Throws a ShapeError unless a tile matches its tensors and is valid for kernels: integer spans with a step of at least
 * 1, as many positions as rows, and integer slices with a type. The kernels `attend` and `attendBackward` of native
 * devices call this first. It does not check that slices of the mask are disjoint: see `resolveSlices`. It does check
 * that slices of samples are disjoint from the mask.
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
  const { modifiers } = tile;
  if (modifiers?.sampleMasks) checkSampleMasks(tile.mask, modifiers, q.shape[0]!);
  if (modifiers?.slopes) {
    const heads = (modifiers.origin?.head ?? 0) + q.shape[1]!;
    checkSlopes("attention: slopes", modifiers.slopes, { q, heads, hasAllHeads: false });
  }
}

/** Checks that every sample of the call has a list of slices, and that it is disjoint from the call's mask. */
function checkSampleMasks(
  mask: readonly Slice[],
  { sampleMasks = [], origin }: AttentionModifiers,
  batch: number,
): void {
  verifySampleMasks("attention: mask of sample", mask, sampleMasks);
  const end = (origin?.batch ?? 0) + batch;
  if (end <= sampleMasks.length) return;
  throw new ShapeError({
    where: "attention: sampleMasks",
    expected: `at least ${end} masks, one per sample${origin ? `, including the samples before origin.batch ${origin.batch}` : ""}`,
    received: String(sampleMasks.length),
  });
}

function checkPositions(where: string, spans: readonly Span[], rows: number): void {
  expectValue(where, Array.isArray(spans), "an array of spans { start, length, step }", spans);
  for (const span of spans) verifySpan(where, span);
  const count = spansLength(spans);
  if (count === rows) return;
  throw new ShapeError({ where, expected: `spans of ${rows} positions, one per row`, received: String(count) });
}

/**
 * Throws an OptionError if an attention call needs a feature that the device does not have. A feature that is added to
 * the contract later is rejected until the device supports it, never ignored. The kernels `attend` and `attendBackward`
 * of every device call this first.
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
      where: `attention on ${formatDevice(device)}`,
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
  if (dropout) features.push(["dropout", `dropout with probability ${dropout.probability}`]);
  if (sampleMasks) features.push(["sampleMasks", `sampleMasks for ${sampleMasks.length} samples`]);
  const [headDim, valueHeadDim] = [k.shape[3]!, v.shape[3]!];
  if (headDim !== valueHeadDim)
    features.push(["valueHeadDim", `keys of head size ${headDim} and values of head size ${valueHeadDim}`]);
  return features;
}
