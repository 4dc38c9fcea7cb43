import {
  attention,
  type AttentionBackend,
  contiguous,
  type Coordinate,
  type DType,
  dtypeBytes,
  type Layout,
  layoutOf,
  type Mask,
  masks,
  omitAxes,
  OptionError,
  type Placement,
  resolveSlices,
  type Slice,
  spansLength,
  type Tensor,
} from "@mosaic/core";
import { noTranslations, type Translations } from "./classes/translations.ts";
import { checkCount, checkFields, expectValue } from "./options.ts";
import type { SymbolicContext } from "./symbolic/context.ts";
import type { Members } from "./symbolic/group.ts";
import type { Names } from "./symbolic/names.ts";
import type { RankRecord } from "./symbolic/rank-record.ts";
import { codeOf } from "./symbolic/tape.ts";
import { LazyWorld } from "./symbolic/world.ts";

export interface RecordOptions {
  readonly backend: AttentionBackend;
  /** Lengths of the mesh's axes. Ranks that differ along axes that the backend does not use have sequences of their own. */
  readonly mesh: Coordinate;
  /** Length of the sequence of queries, and of keys: as many if absent. */
  readonly tokens: number;
  readonly keyTokens?: number;
  readonly numHeads: number;
  /** As many as heads if absent. */
  readonly numKvHeads?: number;
  readonly headDim: number;
  /** Sequences on each rank; 1 if absent. */
  readonly batch?: number;
  /** All keys if absent. */
  readonly mask?: Mask;
  /** Contiguous if absent. */
  readonly placement?: Placement;
  /** Of q, k, v and dOut; bfloat16 if absent. */
  readonly dtype?: DType;
}

const optionNames = [
  "backend",
  "mesh",
  "tokens",
  "keyTokens",
  "numHeads",
  "numKvHeads",
  "headDim",
  "batch",
  "mask",
  "placement",
  "dtype",
] as const satisfies readonly (keyof RecordOptions)[];

/** Where a tensor of interest lies: the number of a view in `RankRecord.views`. */
export type TensorViews = Readonly<Record<"q" | "k" | "v" | "dOut" | "out" | "dq" | "dk" | "dv", number>>;

/** What ranks did in one attention, forward and backward: all of them, or one of each class. */
export interface AttentionRecord {
  readonly options: Readonly<Required<RecordOptions>>;
  readonly queries: Layout;
  readonly keys: Layout;
  readonly slices: readonly Slice[];
  readonly names: Names;
  /** Those of the recorded ranks, by number. */
  readonly groups: readonly Members[];
  /** By rank; of a record of classes the representatives, in order. */
  readonly ranks: readonly RecordedRank[];
  /** Which ranks do what a recorded one does, in its place of the mesh. Of a record of all ranks, none but itself. */
  readonly classes: Translations;
  /** Runs the backend on a rank, recorded or not. */
  readonly recordRank: (rank: number) => RecordedRank;
}

/** One rank of a record. */
export interface RecordedRank {
  readonly tape: RankRecord;
  readonly at: Coordinate;
  /** The first of its sequences, among those of all ranks. */
  readonly firstSequence: number;
  readonly tensorViews: TensorViews;
  /** The most bytes that were allocated at once: inputs, results and gradients included. */
  readonly peakBytes: number;
}

/** The most ranks that are recorded one by one: of larger meshes one rank of each class is. */
export const maxRecordedRanks = 1024;

/**
 * Runs a backend through `attention`, forward and backward, on every rank of a mesh of symbolic devices, and writes down
 * what it does. It is the backend's own code: what throws there throws here.
 *
 * @example
 * ```ts
 * import { local, masks } from "@mosaic/core";
 * import { count, prove, record } from "@mosaic/planner";
 * const run = record({ backend: local(), mesh: { dp: 2 }, tokens: 100, numHeads: 4, headDim: 8, mask: masks.causal() });
 * prove(run).faults; // => []
 * count(run).ranks[1]!.forward.sent.bytes; // => 0
 * ```
 * @throws OptionError for options that do not exist or cannot be: lengths that are no integers, an empty mesh, or one of
 * more than 1 024 ranks, which `recordClasses` records.
 */
export function record(options: RecordOptions): AttentionRecord {
  const recorder = new Recorder("record", options);
  checkRankCount("record", recorder.size, options.mesh);
  return recorder.recordOf(Array.from({ length: recorder.size }, (_, rank) => recorder.rank(rank)));
}

function checkRankCount(where: string, ranks: number, mesh: Coordinate): void {
  if (ranks <= maxRecordedRanks) return;
  throw new OptionError({
    where,
    expected: `a mesh of at most ${maxRecordedRanks} ranks, each of which is recorded`,
    received: `${JSON.stringify(mesh)}, ${ranks} ranks`,
    remedy: "recordClasses records one rank of each class of ranks that do the same",
  });
}

/** As `record`, of some ranks alone: enough to count what these send and hold, not to prove or to simulate. */
export function recordRanks(where: string, options: RecordOptions, only: readonly number[]): AttentionRecord {
  const recorder = new Recorder(where, options);
  for (const rank of only) checkCount(where, "a rank", rank, { min: 0, max: recorder.size - 1 });
  return recorder.recordOf(only.map((rank) => recorder.rank(rank)));
}

/** Runs a backend on symbolic ranks, one at a time, on expectValue. */
export class Recorder {
  /** Ranks of the mesh. */
  readonly size: number;
  readonly options: Readonly<Required<RecordOptions>>;
  readonly queries: Layout;
  readonly keys: Layout;
  readonly slices: readonly Slice[];
  readonly #world: LazyWorld;
  readonly #run: Run;

  /** @throws OptionError that names `where`, as `record`. */
  constructor(where: string, options: RecordOptions) {
    this.options = resolveOptions(where, options);
    const { backend, mesh, tokens, keyTokens, mask, placement } = this.options;
    this.#world = new LazyWorld(where, mesh);
    this.size = this.#world.size;
    const { axes } = backend;
    this.queries = layoutOf({ mesh, axes, placement, length: tokens });
    this.keys = keyTokens === tokens ? this.queries : layoutOf({ mesh, axes, placement, length: keyTokens });
    const slices = resolveSlices(mask, tokens, keyTokens);
    this.slices = slices;
    // Every rank calls the mask's `slices`: one list for all is recognised by identity.
    const same: Mask = { name: mask.name, slices: () => slices };
    this.#run = { options: { ...this.options, mask: same }, queries: this.queries, keys: this.keys };
  }

  get names(): Names {
    return this.#world.names;
  }

  /** Runs the backend on a rank. */
  rank(rank: number): RecordedRank {
    return recordRank(this.#world.context(rank), this.#run);
  }

  /** A record of these ranks, each of which stands for its class; for itself alone if there are no classes. */
  recordOf(ranks: readonly RecordedRank[], classes?: Translations): AttentionRecord {
    const { options, queries, keys, slices } = this;
    const { names, groups } = this.#world;
    return {
      options,
      queries,
      keys,
      slices,
      names,
      groups,
      ranks,
      classes: classes ?? noTranslations(options.mesh),
      recordRank: (rank) => this.rank(rank),
    };
  }
}

/** Fills in what is absent. Heads and their size are for `attention` to check too: they are shapes. */
function resolveOptions(where: string, options: RecordOptions): Readonly<Required<RecordOptions>> {
  checkFields(where, options, optionNames);
  const filled = {
    keyTokens: options.tokens,
    numKvHeads: options.numHeads,
    batch: 1,
    mask: masks.full(),
    placement: contiguous(),
    dtype: "bfloat16" as const,
    ...options,
  };
  for (const name of ["tokens", "keyTokens"] as const) checkCount(where, name, filled[name], { min: 0 });
  for (const name of ["numHeads", "numKvHeads", "headDim", "batch"] as const) checkCount(where, name, filled[name]);
  const { backend, mask, placement, dtype } = filled;
  expectValue(where, isBackend(backend), "a backend: a value with a name, axes, attend and attendBackward", backend);
  expectValue(where, typeof mask?.slices === "function", "a mask: a value with a name and slices", mask);
  expectValue(where, typeof placement?.spans === "function", "a placement: a value with a name and spans", placement);
  expectValue(where, Object.hasOwn(dtypeBytes, dtype), `dtype ${Object.keys(dtypeBytes).join(", ")}`, dtype);
  return filled;
}

function isBackend(backend: AttentionBackend | undefined): boolean {
  return Array.isArray(backend?.axes) && typeof backend?.attend === "function";
}

interface Run {
  readonly options: Readonly<Required<RecordOptions>>;
  readonly queries: Layout;
  readonly keys: Layout;
}

function recordRank(ctx: SymbolicContext, run: Run): RecordedRank {
  const recorded = recordAttention(ctx, run);
  recorded.tape.close();
  return recorded;
}

function recordAttention(ctx: SymbolicContext, { options, queries, keys }: Run): RecordedRank {
  const { backend, numHeads, numKvHeads, headDim, batch, dtype, mask } = options;
  const { device } = ctx;
  const at = ctx.mesh.coordinate;
  const tape = device.record;
  const made = (of: number, rows: Layout): Tensor =>
    device.empty([batch, of, spansLength(rows.spans(at)), headDim], dtype);
  const mark = (phase: string): void => tape.push(codeOf.mark, [tape.names.word(phase)]);
  using q = made(numHeads, queries);
  using k = made(numKvHeads, keys);
  using v = made(numKvHeads, keys);
  using dOut = made(numHeads, queries);
  for (const input of [q, k, v]) input.requiresGrad = true;
  mark("forward");
  using out = attention(ctx, q, k, v, { backend, mask, queries, keys });
  mark("backward");
  // The check of what came out needs the output too, after the tape has let go of what it saved.
  out.backward(dOut);
  using dq = q.grad!;
  using dk = k.grad!;
  using dv = v.grad!;
  const tensors = { q, k, v, dOut, out, dq, dk, dv };
  const tensorViews = Object.fromEntries(
    Object.entries(tensors).map(([name, x]) => [name, tape.viewOf(x)]),
  ) as TensorViews;
  mark("end");
  return { tape, at, firstSequence: batch * sequenceIndex(at, options), tensorViews, peakBytes: device.memory().peak };
}

/** Number of the sequence among those of the mesh: ranks along the backend's axes share one. */
function sequenceIndex(at: Coordinate, { backend, mesh }: RecordOptions): number {
  const own = Object.entries(omitAxes(at, backend.axes));
  return own.reduce((number, [axis, place]) => number * mesh[axis]! + place, 0);
}
