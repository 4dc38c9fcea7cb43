import type { Context } from "../context.ts";
import { DTypeError, OptionError, ShapeError } from "../errors.ts";
import type { Mask } from "../mask/slice.ts";
import { checkDevice } from "../arguments.ts";
import type { Layout } from "../placement/layout.ts";
import { spansLength } from "../placement/span.ts";
import { verifyLayout } from "../placement/verify.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import type { AttentionBackend } from "./backend.ts";

interface AttentionArguments {
  readonly ctx: Context;
  readonly backend: AttentionBackend;
  readonly scale: number;
  readonly queries: Layout;
  readonly keys: Layout;
}

/** The largest head that kernels serve. */
const maxHeadSize = 256;

/** Everything that can be wrong with one rank's call, thrown before any rank waits for another. */
export function checkAttention(call: AttentionArguments, qkv: { q: Tensor; k: Tensor; v: Tensor }): void {
  const where = `${backendLabel(call.backend)}, rank ${call.ctx.rank}`;
  for (const x of Object.values(qkv)) x.assertNotDisposed(where);
  checkTensors(where, qkv);
  checkLayout(`${where}: queries`, call.queries);
  checkLayout(`${where}: keys`, call.keys);
  checkAxes(where, call);
  verifyLayout(`${where}: queries`, call.queries, call.ctx.mesh.shape);
  verifyLayout(`${where}: keys`, call.keys, call.ctx.mesh.shape);
  checkRows(where, "queries", { shape: qkv.q.shape, layout: call.queries, call });
  checkRows(where, "keys", { shape: qkv.k.shape, layout: call.keys, call });
  if (Number.isFinite(call.scale)) return;
  throw new OptionError({ where, expected: "a finite scale", received: String(call.scale) });
}

/** That a mask is one, and not its name. Throws an OptionError. */
export function checkMask(where: string, mask: Mask): void {
  if (typeof (mask as Partial<Mask> | null)?.slices === "function") return;
  throw new OptionError({
    where: `${where}: mask`,
    expected: "a Mask, such as masks.causal() or masks.documents([3, 5])",
    received: typeof mask === "string" ? `"${mask}"` : String(mask),
  });
}

/** That a layout is one, and not an option left out. Throws an OptionError. */
function checkLayout(where: string, layout: Layout): void {
  const { axes, spans } = (layout ?? {}) as Partial<Layout>;
  if (Array.isArray(axes) && typeof spans === "function") return;
  throw new OptionError({ where, expected: "a Layout from layoutOf()", received: String(layout) });
}

/** `ring(sp)`: the name, and the axes along which it communicates. */
function backendLabel({ name, axes }: AttentionBackend): string {
  return axes.length > 0 && !name.includes("(") ? `${name}(${axes.join(",")})` : name;
}

function checkTensors(where: string, { q, k, v }: { q: Tensor; k: Tensor; v: Tensor }): void {
  const [b, h, , d] = q.shape;
  const [, hkv] = k.shape;
  const ranks = q.rank === 4 && k.rank === 4 && v.rank === 4;
  const fits = ranks && k.shape[0] === b && k.shape[3] === d && k.shape.every((length, i) => length === v.shape[i]);
  if (!fits || h! % hkv! !== 0 || d! < 1 || d! > maxHeadSize) {
    throw new ShapeError({
      where,
      expected: `q [B,H,Sq,D], k and v [B,Hkv,Sk,D], H a multiple of Hkv, D from 1 to ${maxHeadSize}`,
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
  what: "queries" | "keys",
  { shape, layout, call }: { shape: readonly number[]; layout: Layout; call: AttentionArguments },
): void {
  const rows = spansLength(layout.spans(call.ctx.mesh.coordinate));
  if (shape[2] === rows) return;
  throw new ShapeError({
    where: `${where}: ${what} ${formatShape(shape)}`,
    expected: `${rows} rows, this rank's shard of ${layout.length}`,
    received: String(shape[2]),
    remedy: "pass the placement and the length that the sequence was sharded with",
  });
}

/** Keys cut along an axis that the backend does not gather would be missed; along one too few, counted again. */
function checkAxes(where: string, { backend, queries, keys }: AttentionArguments): void {
  for (const layout of [queries, keys]) {
    if (layout.axes.length === backend.axes.length && layout.axes.every((axis) => backend.axes.includes(axis)))
      continue;
    throw new OptionError({
      where,
      expected: `a sequence sharded along the backend's axes, [${backend.axes.join(", ")}]`,
      received: `sharded along [${layout.axes.join(", ")}]`,
      remedy:
        "pass queries and keys as layouts from layoutOf with the backend's axes, or use a backend over these axes",
    });
  }
}
