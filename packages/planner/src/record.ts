import {
  attention,
  type AttentionBackend,
  checkOptionNames,
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
import { checkMesh } from "./symbolic/checks.ts";
import type { SymbolicContext } from "./symbolic/context.ts";
import type { Members } from "./symbolic/group.ts";
import type { Names } from "./symbolic/names.ts";
import type { RankRecord } from "./symbolic/rank-record.ts";
import { codeOf } from "./symbolic/tape.ts";
import { symbolicWorld } from "./symbolic/world.ts";

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

const legal = [
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
export type Ends = Readonly<Record<"q" | "k" | "v" | "dOut" | "out" | "dq" | "dk" | "dv", number>>;

/** What all ranks did in one attention, forward and backward. */
export interface AttentionRecord {
  readonly options: Readonly<Required<RecordOptions>>;
  readonly queries: Layout;
  readonly keys: Layout;
  readonly slices: readonly Slice[];
  readonly names: Names;
  readonly groups: readonly Members[];
  readonly ranks: readonly RecordedRank[];
}

/** One rank of a record. */
export interface RecordedRank {
  readonly tape: RankRecord;
  readonly at: Coordinate;
  /** The first of its sequences, among those of all ranks. */
  readonly firstSequence: number;
  readonly ends: Ends;
  /** The most bytes that were allocated at once: inputs, results and gradients included. */
  readonly peakBytes: number;
}

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
 * @throws OptionError for options that do not exist or cannot be: lengths that are no whole numbers, an empty mesh.
 */
export function record(options: RecordOptions): AttentionRecord {
  return recordRanks(options);
}

/** As `record`, of some ranks alone: enough to count what these send and hold, not to prove or to simulate. */
export function recordRanks(options: RecordOptions, only?: readonly number[]): AttentionRecord {
  checkOptionNames("record", options, legal);
  const { backend, mesh, tokens } = options;
  const filled = {
    keyTokens: tokens,
    numKvHeads: options.numHeads,
    batch: 1,
    mask: masks.full(),
    placement: contiguous(),
    dtype: "bfloat16" as const,
    ...options,
  };
  const { placement, keyTokens, mask } = filled;
  checkMesh("record", mesh);
  checkCounts(filled);
  const { axes } = backend;
  const queries = layoutOf({ mesh, axes, placement, length: tokens });
  const keys = keyTokens === tokens ? queries : layoutOf({ mesh, axes, placement, length: keyTokens });
  const slices = resolveSlices(mask, tokens, keyTokens);
  // Every rank asks the mask for its slices: told once, they are known by identity.
  const told: Mask = { name: mask.name, slices: () => slices };
  const world = symbolicWorld({ mesh });
  const run: Run = { options: { ...filled, mask: told }, queries, keys };
  const contexts = only ? only.map((rank) => world.contexts[rank]!) : world.contexts;
  const ranks = contexts.map((ctx) => recordRank(ctx, run));
  return { options: filled, queries, keys, slices, names: world.names, groups: world.groups, ranks };
}

/** Heads and their size are for `attention` to check: they are shapes. */
function checkCounts({ tokens, keyTokens, batch, dtype }: Required<RecordOptions>): void {
  const where = "record";
  for (const [name, value, least] of [
    ["tokens", tokens, 0] as const,
    ["keyTokens", keyTokens, 0] as const,
    ["batch", batch, 1] as const,
  ]) {
    if (Number.isSafeInteger(value) && value >= least) continue;
    throw new OptionError({ where, expected: `${name} a whole number ≥ ${least}`, received: String(value) });
  }
  if (Object.hasOwn(dtypeBytes, dtype)) return;
  throw new OptionError({ where, expected: `dtype ${Object.keys(dtypeBytes).join(", ")}`, received: String(dtype) });
}

interface Run {
  readonly options: Readonly<Required<RecordOptions>>;
  readonly queries: Layout;
  readonly keys: Layout;
}

function recordRank(ctx: SymbolicContext, run: Run): RecordedRank {
  const recorded = recordCall(ctx, run);
  recorded.tape.close();
  return recorded;
}

function recordCall(ctx: SymbolicContext, { options, queries, keys }: Run): RecordedRank {
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
  const ends = Object.fromEntries(Object.entries(tensors).map(([name, x]) => [name, tape.viewOf(x)])) as Ends;
  mark("end");
  return { tape, at, firstSequence: batch * sequenceOf(at, options), ends, peakBytes: device.memory().peak };
}

/** Number of the sequence among those of the mesh: ranks along the backend's axes share one. */
function sequenceOf(at: Coordinate, { backend, mesh }: RecordOptions): number {
  const own = Object.entries(omitAxes(at, backend.axes));
  return own.reduce((number, [axis, place]) => number * mesh[axis]! + place, 0);
}
