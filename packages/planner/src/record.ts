import {
  attention,
  checkArgument,
  type Coordinate,
  defineOptions,
  expectValue,
  type Layout,
  layoutOf,
  type Mask,
  masks,
  omitAxes,
  option,
  OptionError,
  type OptionsOf,
  type Placement,
  resolvePlacement,
  type ResolvedOptionsOf,
  type Slice,
  spansLength,
  type Tensor,
} from "@mosaic/core";
import { batchMaskOptions, resolveBatchMaskUnchecked } from "@mosaic/core/context-parallel";
import { identityTranslations, type Translations } from "./symmetry/translations.ts";
import type { SymbolicContext } from "./symbolic/context.ts";
import type { GroupInfo } from "./symbolic/group.ts";
import type { InternPool } from "./symbolic/intern-pool.ts";
import type { RankRecord } from "./symbolic/rank-record.ts";
import { opcodes } from "./symbolic/tape.ts";
import { LazyWorld } from "./symbolic/world.ts";

const positiveRange = { min: 1 } as const;
const nonNegativeRange = { min: 0 } as const;

export const recordOptions = defineOptions("record", {
  /** Any backend; its own code is run. */
  backend: option.backend(),
  /** Lengths of the mesh axes. Ranks that differ along axes that the backend does not use have different sequences. */
  mesh: option.meshShape(),
  /** Length of the sequence of queries. */
  tokens: option.integer(nonNegativeRange),
  /** Length of the sequence of keys. Default: tokens. */
  keyTokens: option.integer({ ...nonNegativeRange, optional: true }),
  /** Number of query heads. */
  numHeads: option.integer(positiveRange),
  /** Number of KV heads, a divisor of numHeads. Default: numHeads. */
  numKvHeads: option.integer({ ...positiveRange, optional: true }),
  /** Size of a head. */
  headDim: option.integer(positiveRange),
  /** Size of a head of the values. Default: headDim. */
  valueHeadDim: option.integer({ ...positiveRange, optional: true }),
  /** As in `attention`. Costs and messages do not depend on it. Default: none. */
  softcap: option.number({ above: 0, optional: true }),
  /** Whether heads have ALiBi slopes. Default false. */
  alibiSlopes: option.boolean({ default: false }),
  /** Whether heads have sinks, whose gradients are computed too. Default false. */
  sinks: option.boolean({ default: false }),
  /** Dropout probability of an attention weight. Default 0. */
  dropout: option.number({ min: 0, below: 1, default: 0 }),
  /** Sequences on each rank. Default 1. */
  batch: option.integer({ ...positiveRange, default: 1 }),
  ...batchMaskOptions.fields,
  /** Host number of each rank, row-major in the mesh, as in `ProcessGroup.hosts`. Default: not known. */
  hosts: option.array(option.integer({ min: 0 }), { optional: true }),
  /** Placement of the sequence on the ranks. Default "contiguous". */
  placement: option.placement({ default: "contiguous" }),
  /** Data type of q, k, v and dOut. Default "bfloat16". */
  dtype: option.dtype({ default: "bfloat16" }),
});
/** One attention call, forward and backward, and the mesh that it runs on. */
export type RecordOptions = OptionsOf<typeof recordOptions>;

/** All options of a record with defaults filled in. `placement` is the placement itself, not its name. */
export interface ResolvedRecordOptions extends ResolvedOptionsOf<typeof recordOptions> {
  readonly keyTokens: number;
  readonly numKvHeads: number;
  readonly valueHeadDim: number;
  readonly mask: Mask | readonly Mask[];
  readonly placement: Placement;
}

/** Location of each tensor, as the number of its view in `RankRecord.views`; −1 for sinks if the call has none. */
export type TensorViews = Readonly<Record<"q" | "k" | "v" | "sinks" | "dOut" | "out" | "dq" | "dk" | "dv", number>>;

/** What ranks did in one attention, forward and backward: all of them, or one of each class. */
export interface AttentionRecord {
  readonly options: ResolvedRecordOptions;
  readonly queries: Layout;
  readonly keys: Layout;
  /** Slices of the mask. If samples have masks of their own, the slices of all samples; see `InternPool.tileSlices`. */
  readonly slices: readonly Slice[];
  readonly interned: InternPool;
  /** Groups of the recorded ranks, by number. */
  readonly groups: readonly GroupInfo[];
  /** All ranks, by rank; in a record of classes, the representatives in ascending order. */
  readonly ranks: readonly RecordedRank[];
  /**
   * Maps each rank to the recorded rank that does the same at its place in the mesh; to itself in a record of all
   * ranks.
   */
  readonly classes: Translations;
  /** Runs the backend on a rank, recorded or not. */
  readonly recordRank: (rank: number) => RecordedRank;
}

/** One rank of a record. */
export interface RecordedRank {
  readonly tape: RankRecord;
  readonly at: Coordinate;
  /** Index of its first sequence among those of all ranks. */
  readonly firstSequence: number;
  readonly tensorViews: TensorViews;
  /** Peak allocated memory in bytes, including inputs, results and gradients. */
  readonly peakBytes: number;
}

/** Throws an OptionError unless a value is what `record` or `recordRepresentatives` returned. */
export function checkRecord(where: string, record: unknown): void {
  const { ranks, options, classes } = (record ?? {}) as Readonly<Record<string, unknown>>;
  const isRecord = Array.isArray(ranks) && typeof options === "object" && typeof classes === "object";
  expectValue(where, isRecord && options !== null && classes !== null, "a record returned by record()", record);
}

/** Maximum number of ranks that are recorded one by one. In larger meshes, one rank of each class is recorded. */
export const maxRecordedRanks = 1024;

/**
 * Runs a backend through `attention`, forward and backward, on every rank of a mesh of symbolic devices, and records
 * what it does. The backend's own code runs, so that an error thrown by it is thrown here.
 *
 * @example
 * ```ts
 * import { local, masks } from "@mosaic/core";
 * import { count, prove, record } from "@mosaic/planner";
 * const run = record({ backend: local(), mesh: { dp: 2 }, tokens: 100, numHeads: 4, headDim: 8, mask: masks.causal() });
 * prove(run).violations; // => []
 * count(run).ranks[1]!.forward.sent.bytes; // => 0
 * ```
 * @throws OptionError for unknown options or invalid values, such as non-integer lengths, an empty mesh, or a mesh of
 * more than 1 024 ranks, which `recordRepresentatives` records.
 */
export function record(options: RecordOptions): AttentionRecord {
  const recorder = new Recorder("record", options);
  checkRankCount("record", recorder.size, options.mesh);
  return recorder.createRecord(Array.from({ length: recorder.size }, (_, rank) => recorder.recordRank(rank)));
}

function checkRankCount(where: string, ranks: number, mesh: Coordinate): void {
  if (ranks <= maxRecordedRanks) return;
  throw new OptionError({
    where,
    expected: `a mesh of at most ${maxRecordedRanks} ranks`,
    received: `${JSON.stringify(mesh)}, ${ranks} ranks`,
    remedy: "call recordRepresentatives, which records one rank per equivalence class",
  });
}

/** Records some ranks only. This is enough to count what these ranks send and hold, but not to prove or to simulate. */
export function recordRanks(where: string, options: RecordOptions, rankSubset: readonly number[]): AttentionRecord {
  const recorder = new Recorder(where, options);
  for (const rank of rankSubset)
    checkArgument(`${where}: rank`, rank, option.integer({ min: 0, max: recorder.size - 1 }));
  return recorder.createRecord(rankSubset.map((rank) => recorder.recordRank(rank)));
}

/** Runs a backend on symbolic ranks, one at a time, on demand. */
export class Recorder {
  /** Number of ranks of the mesh. */
  readonly size: number;
  readonly options: ResolvedRecordOptions;
  readonly queries: Layout;
  readonly keys: Layout;
  readonly slices: readonly Slice[];
  readonly #world: LazyWorld;
  readonly #call: RecordedCall;

  /** @throws OptionError that names `where`, as `record` does. */
  constructor(where: string, options: RecordOptions) {
    this.options = resolveOptions(where, options);
    const { backend, mesh, tokens, keyTokens, batch, placement, hosts } = this.options;
    this.#world = new LazyWorld(where, mesh, { hosts });
    this.size = this.#world.size;
    const { axes } = backend;
    this.queries = layoutOf({ mesh, axes, placement, length: tokens });
    this.keys = keyTokens === tokens ? this.queries : layoutOf({ mesh, axes, placement, length: keyTokens });
    const resolvedMask = resolveBatchMaskUnchecked(where, this.options, { batch, queries: tokens, keys: keyTokens });
    this.slices = this.interned.tileSlices(resolvedMask);
    this.interned.tileMaskId(resolvedMask);
    this.#call = { options: this.options, queries: this.queries, keys: this.keys };
  }

  get interned(): InternPool {
    return this.#world.interned;
  }

  /** Runs the backend on a rank. */
  recordRank(rank: number): RecordedRank {
    return recordRank(this.#world.context(rank), this.#call);
  }

  /** Creates a record of these ranks. Each represents its class, or only itself if there are no classes. */
  createRecord(ranks: readonly RecordedRank[], classes?: Translations): AttentionRecord {
    const { options, queries, keys, slices } = this;
    const { interned, groups } = this.#world;
    return {
      options,
      queries,
      keys,
      slices,
      interned,
      groups,
      ranks,
      classes: classes ?? identityTranslations(options.mesh),
      recordRank: (rank) => this.recordRank(rank),
    };
  }
}

/** Fills in defaults. `attention` also checks the head counts and head sizes, because they are tensor shapes. */
function resolveOptions(where: string, options: RecordOptions): ResolvedRecordOptions {
  const parsedOptions = recordOptions.parse(options, where);
  const { tokens, numHeads, headDim, keyTokens = tokens, numKvHeads = numHeads, mask = masks.full() } = parsedOptions;
  const { valueHeadDim = headDim } = parsedOptions;
  return {
    ...parsedOptions,
    keyTokens,
    numKvHeads,
    valueHeadDim,
    mask,
    placement: resolvePlacement(parsedOptions.placement),
  };
}

interface RecordedCall {
  readonly options: ResolvedRecordOptions;
  readonly queries: Layout;
  readonly keys: Layout;
}

function recordRank(ctx: SymbolicContext, call: RecordedCall): RecordedRank {
  const recordedRank = recordAttention(ctx, call);
  recordedRank.tape.close();
  return recordedRank;
}

function recordAttention(ctx: SymbolicContext, { options, queries, keys }: RecordedCall): RecordedRank {
  const { backend, numHeads, numKvHeads, headDim, valueHeadDim, batch, dtype, mask, lengths, padding } = options;
  const { softcap, dropout } = options;
  const { device } = ctx;
  const coordinate = ctx.mesh.coordinate;
  const tape = device.record;
  const createTensor = (heads: number, rows: Layout, width: number = headDim): Tensor =>
    device.empty([batch, heads, spansLength(rows.spans(coordinate)), width], dtype);
  const mark = (phase: string): void => tape.push(opcodes.mark, [tape.interned.stringId(phase)]);
  using q = createTensor(numHeads, queries);
  using k = createTensor(numKvHeads, keys);
  using v = createTensor(numKvHeads, keys, valueHeadDim);
  using dOut = createTensor(numHeads, queries, valueHeadDim);
  using slopes = options.alibiSlopes ? device.empty([numHeads], "float32") : undefined;
  using sinks = options.sinks ? device.empty([numHeads], "float32") : undefined;
  const modifiers = { softcap, dropout, ...(slopes && { alibiSlopes: slopes }), ...(sinks && { sinks }) };
  for (const input of [q, k, v, ...(sinks ? [sinks] : [])]) input.requiresGrad = true;
  mark("forward");
  using out = attention(ctx, q, k, v, { backend, mask, lengths, padding, ...modifiers, queries, keys });
  mark("backward");
  // The check of the results also needs the output, after the tape has released what it saved.
  out.backward(dOut);
  using dq = q.grad!;
  using dk = k.grad!;
  using dv = v.grad!;
  const tensors = { q, k, v, sinks, dOut, out, dq, dk, dv };
  const tensorViews = Object.fromEntries(
    Object.entries(tensors).map(([name, x]) => [name, x ? tape.viewOf(x) : -1]),
  ) as TensorViews;
  sinks?.grad?.dispose();
  mark("end");
  return {
    tape,
    at: coordinate,
    firstSequence: batch * sequenceIndex(coordinate, options),
    tensorViews,
    peakBytes: device.memory().peak,
  };
}

/** Returns the index of the rank's sequence among those of the mesh. Ranks along the backend's axes share one. */
function sequenceIndex(at: Coordinate, { backend, mesh }: RecordOptions): number {
  const otherCoordinates = Object.entries(omitAxes(at, backend.axes));
  return otherCoordinates.reduce((index, [axis, coordinate]) => index * mesh[axis]! + coordinate, 0);
}
