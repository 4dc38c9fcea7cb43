import type { Context } from "../context.ts";
import type { Slice } from "../mask/slice.ts";
import type { Coordinate, DeviceMesh } from "../mesh.ts";
import type { Layout } from "../placement/placement.ts";
import { coordinatesAlong } from "../placement/verify.ts";
import type { Tensor } from "../tensor.ts";
import { type AttentionBackend, type AttentionCall, describeBackend } from "./backend.ts";
import { formatSampleMasks, formatShards, formatSlices } from "./format.ts";
import type { AttentionModifiers, KvBlock } from "./tile.ts";

// The ranks of an attention call must agree on its mask and layouts, because each rank derives from them what it sends
// and computes. No message contains them, so every call is recorded in the histories of the groups along the backend's
// axes.

/**
 * Number of calls per rank whose descriptions are cached: enough for the layers of a model, not for a sequence that
 * grows with each call.
 */
const MAX_CACHED_CALLS = 16;
/** Maximum number of slices that are compared one by one. Longer masks are compared by identity. */
const MAX_COMPARED_SLICES = 4;

/** Pass of an attention call that is recorded. */
export type AttentionPass = "forward" | "backward";

/** A call with the sinks that are merged after its last key. */
type RecordedCall = AttentionCall & { readonly sinks: Tensor | null };

/** Records a call, forward or backward, in the groups along the backend's axes. Nothing is sent. */
// oxlint-disable-next-line max-params -- as `AttentionBackend.attend`: context, call, keys
export function recordCall(
  ctx: Context,
  backend: AttentionBackend,
  pass: AttentionPass,
  call: RecordedCall,
  kv: KvBlock,
): void {
  let description: CallDescription | undefined;
  for (const axis of backend.axes) {
    // The backend reports an axis that the mesh does not have.
    if ((ctx.mesh.shape[axis] ?? 1) === 1) continue;
    description ??= findOrCreateDescription(ctx, backend, call, kv);
    ctx.mesh.group(axis).recordCall(description[pass]);
  }
}

const descriptionCache = new WeakMap<DeviceMesh, CallDescription[]>();

function findOrCreateDescription(
  { mesh }: Context,
  backend: AttentionBackend,
  call: RecordedCall,
  kv: KvBlock,
): CallDescription {
  let calls = descriptionCache.get(mesh);
  if (!calls) descriptionCache.set(mesh, (calls = []));
  for (const cachedDescription of calls) if (cachedDescription.matches(backend, call, kv)) return cachedDescription;
  if (calls.length >= MAX_CACHED_CALLS) calls.shift();
  const description = new CallDescription(mesh.shape, backend, call, kv);
  calls.push(description);
  return description;
}

/** A call and its description. The text is composed once, when a group first compares calls. */
class CallDescription {
  readonly #mesh: Coordinate;
  readonly #backend: AttentionBackend;
  readonly #call: Omit<AttentionCall, "q" | "at">;
  readonly #hasSinks: boolean;
  readonly #dtype: Tensor["dtype"];
  /** B, H, Hkv, D and Dv. */
  readonly #sizes: readonly [number, number, number, number, number];
  #cachedDescription: string | undefined;

  constructor(
    mesh: Coordinate,
    backend: AttentionBackend,
    { q, scale, mask, modifiers, queries, keys, sinks }: RecordedCall,
    { k, v }: KvBlock,
  ) {
    this.#mesh = mesh;
    this.#backend = backend;
    this.#call = { scale, mask, modifiers, queries, keys };
    this.#hasSinks = sinks !== null;
    this.#dtype = q.dtype;
    this.#sizes = [q.shape[0]!, q.shape[1]!, k.shape[1]!, q.shape[3]!, v.shape[3]!];
  }

  readonly forward = (): string => `attention by ${this.#description()}`;
  readonly backward = (): string => `attention backward by ${this.#description()}`;

  matches(backend: AttentionBackend, call: RecordedCall, { k, v }: KvBlock): boolean {
    const describedCall = this.#call;
    const { q, scale, mask, modifiers, queries, keys, sinks } = call;
    const [batch, heads, kvHeads, headDim, valueHeadDim] = this.#sizes;
    return (
      describedCall.queries === queries &&
      describedCall.keys === keys &&
      describedCall.scale === scale &&
      areModifiersEqual(describedCall.modifiers, modifiers) &&
      this.#hasSinks === (sinks !== null) &&
      areSlicesEqual(describedCall.mask, mask) &&
      this.#dtype === q.dtype &&
      batch === q.shape[0] &&
      heads === q.shape[1] &&
      kvHeads === k.shape[1] &&
      headDim === q.shape[3] &&
      valueHeadDim === v.shape[3] &&
      this.#backend === backend
    );
  }

  #description(): string {
    return (this.#cachedDescription ??= this.#format());
  }

  #format(): string {
    const { scale, mask, modifiers, queries, keys } = this.#call;
    const [batch, heads, kvHeads, headDim, valueHeadDim] = this.#sizes;
    const fields = [
      `${describeBackend(this.#backend)}: ${this.#dtype} [${batch},${heads},S,${headDim}]`,
      ...(kvHeads === heads ? [] : [`${kvHeads} KV heads`]),
      ...(valueHeadDim === headDim ? [] : [`values of head size ${valueHeadDim}`]),
      `scale ${scale}`,
      ...(this.#hasSinks ? ["sinks"] : []),
      ...formatModifiers(modifiers),
      `mask ${formatSlices(mask)}`,
    ];
    const [queryLayoutText, keyLayoutText] = [
      formatShardLayout(queries, this.#mesh),
      formatShardLayout(keys, this.#mesh),
    ];
    if (queryLayoutText === keyLayoutText) return [...fields, `rows ${queryLayoutText}`].join(", ");
    return [...fields, `queries ${queryLayoutText}`, `keys ${keyLayoutText}`].join(", ");
  }
}

/** Compares short lists slice by slice, because masks are often created for each call. */
function areSlicesEqual(a: readonly Slice[], b: readonly Slice[]): boolean {
  if (a === b) return true;
  if (a.length !== b.length || a.length > MAX_COMPARED_SLICES) return false;
  return a.every((slice, i) => {
    const { q0, q1, k0, k1, type } = b[i]!;
    return slice.q0 === q0 && slice.q1 === q1 && slice.k0 === k0 && slice.k1 === k1 && slice.type === type;
  });
}

/** Compares modifiers by value, because the object is created for each call. */
function areModifiersEqual(a: AttentionModifiers | undefined, b: AttentionModifiers | undefined): boolean {
  if (a === b) return true;
  return (
    a !== undefined &&
    b !== undefined &&
    a.softcap === b.softcap &&
    a.slopes?.size === b.slopes?.size &&
    a.sampleMasks === b.sampleMasks &&
    a.dropout?.probability === b.dropout?.probability &&
    a.dropout?.seed === b.dropout?.seed &&
    a.dropout?.stream === b.dropout?.stream &&
    a.origin?.batch === b.origin?.batch &&
    a.origin?.head === b.origin?.head
  );
}

/** Formats a layout with its shards, as `512 over sp: 0:128 | 128:256 | …`. */
function formatShardLayout(layout: Layout, mesh: Coordinate): string {
  const { axes, length } = layout;
  if (axes.length === 0) return `${length}`;
  const shards = coordinatesAlong(axes, mesh).map((coordinate) => layout.spans(coordinate));
  return `${length} over ${axes.join(",")}: ${formatShards(shards)}`;
}

/** Formats modifiers. Slopes are in device memory, so only their number is included. */
function formatModifiers(modifiers: AttentionModifiers | undefined): string[] {
  const { softcap, slopes, dropout, sampleMasks, origin } = modifiers ?? {};
  return [
    ...(softcap === undefined ? [] : [`softcap ${softcap}`]),
    ...(slopes ? [`${slopes.shape[0]} ALiBi slopes`] : []),
    ...(dropout ? [`dropout ${dropout.probability} with seed ${dropout.seed}, stream ${dropout.stream}`] : []),
    ...(sampleMasks ? [`sample masks ${formatSampleMasks(sampleMasks)}`] : []),
    ...(origin ? [`first head ${origin.head}, first sample ${origin.batch}`] : []),
  ];
}
