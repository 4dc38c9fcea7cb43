import { type Context, contiguous, layoutOf, OptionError, ShapeError, type Span } from "@mosaic/core";

/** One chunk: a stretch of the sequence that is summarised, chosen and sent as a whole. */
export interface Chunk {
  /** Its number in the whole sequence. */
  readonly index: number;
  /** The rank, along the axis, that holds it. */
  readonly owner: number;
  /** Where it begins in the whole sequence, and in its owner's shard. */
  readonly start: number;
  readonly offset: number;
  /** Tokens in it. */
  readonly length: number;
}

/** How a sequence is cut: ranks one after another, each with equally many chunks, all as equal as can be. */
export interface Chunks {
  /** All of them, in the order of the sequence. */
  readonly all: readonly Chunk[];
  /** This rank's. */
  readonly own: readonly Chunk[];
  readonly perRank: number;
  /** This rank's place along the axis, and how many there are. */
  readonly rank: number;
  readonly ranks: number;
  /** Tokens of the whole sequence. */
  readonly length: number;
}

/** How many ranks share the sequence. Throws an OptionError if the mesh lacks the axis. */
export function ranksAlong(where: string, ctx: Context, axis: string): number {
  const ranks = Object.hasOwn(ctx.mesh.shape, axis) ? ctx.mesh.shape[axis] : undefined;
  if (ranks !== undefined) return ranks;
  throw new OptionError({
    where,
    expected: `one of the mesh's axes ${ctx.mesh.axes.join(", ")}`,
    received: `"${axis}"`,
    remedy: "name the axis in init({ mesh }), or give axis the one you mean",
  });
}

/** The chunks of a sequence of `length` tokens, of which this rank holds `rows`. */
export function chunksOf(
  where: string,
  ctx: Context,
  { axis, perRank, rows, length }: { axis: string; perRank: number; rows: number; length?: number | undefined },
): Chunks {
  const ranks = ranksAlong(where, ctx, axis);
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: [axis], length: length ?? rows * ranks });
  const rank = ctx.mesh.coordinate[axis]!;
  const shards = Array.from({ length: ranks }, (_, owner): Span => {
    return layout.spans({ [axis]: owner })[0] ?? { start: 0, length: 0, step: 1 };
  });
  checkRows(`${where}, rank ${ctx.rank}`, { rows, shards, rank, length: layout.length });
  checkRoom(where, shards, perRank);
  const pieces = contiguous();
  const all = shards.flatMap((shard, owner) =>
    Array.from({ length: perRank }, (_, i): Chunk => {
      const { start, length } = pieces.spans(i, perRank, shard.length)[0]!;
      return { index: owner * perRank + i, owner, start: shard.start + start, offset: start, length };
    }),
  );
  const own = all.slice(rank * perRank, (rank + 1) * perRank);
  return { all, own, perRank, rank, ranks, length: layout.length };
}

interface Rows {
  readonly rows: number;
  readonly shards: readonly Span[];
  readonly rank: number;
  readonly length: number;
}

function checkRows(where: string, { rows, shards, rank, length }: Rows): void {
  if (shards[rank]!.length === rows) return;
  throw new ShapeError({
    where,
    expected: `${shards[rank]!.length} rows, this rank's share of ${length}`,
    received: String(rows),
    remedy: "cut the sequence as contiguous() does and give sequenceLength, the length of the whole",
  });
}

/** Told by every rank alike, whichever shard is too short. */
function checkRoom(where: string, shards: readonly Span[], perRank: number): void {
  const shortest = Math.min(...shards.map(({ length }) => length));
  if (shortest >= perRank) return;
  throw new ShapeError({
    where,
    expected: `at least one token for each of the ${perRank} chunks of a rank`,
    received: `a shard of ${shortest}`,
    remedy: "give a longer sequence, or fewer chunksPerRank",
  });
}
