import { type DependencyTable, modulo } from "@mosaic/core/context-parallel";

/** p ranks in rows · columns places, row-major: rank = row · columns + column. */
export interface Grid {
  readonly rows: number;
  readonly columns: number;
}

// The ranks of a row share their queries, those of a column their keys. What is at offset 0 is a rank's own, so that its
// tile holds block (rank, rank) and neither its queries nor its keys travel to it: the local Q-KV property of
// Mesh-Attention, figure 5. Offsets may be negative: the rank at offset −x has this one at offset x.

/** Whose queries `rank` works on in row x of its tile. */
export function queryOwner({ columns }: Grid, rank: number, x: number): number {
  const column = rank % columns;
  return rank - column + modulo(column + x, columns);
}

/** Whose keys `rank` works on in column y of its tile. */
export function keyOwner({ rows, columns }: Grid, rank: number, y: number): number {
  return modulo(rank + y * columns, rows * columns);
}

/**
 * The grid of p ranks that sends the fewest bytes in a forward and a backward, when `group` query heads share a KV head
 * and messages are of one width: per column 5 chunks of queries' size, per row 6 / group. The wider one of two equals.
 *
 * Keys that come in `parts` make their way each time, queries once: wide grids then send less, but hold the queries of a
 * whole row until the last part. So none is wider than the one nearest to a square.
 */
export function bestGrid(size: number, queriesPerKvHead: number, numKeyParts: number): Grid {
  const relativeVolume = ({ rows, columns }: Grid) =>
    5 * (columns - 1) + (6 / queriesPerKvHead) * numKeyParts * (rows - 1);
  let columns = Math.ceil(Math.sqrt(size) - 1e-9);
  while (size % columns !== 0) columns++;
  let best: Grid = { rows: size / columns, columns };
  for (columns--; columns >= 1; columns--) {
    const grid = { rows: size / columns, columns };
    if (size % columns === 0 && relativeVolume(grid) < relativeVolume(best)) best = grid;
  }
  return best;
}

/** One dimension of a rank's tile: the queries along its row, or the keys along its column. Ranks are those of the group. */
export interface TilePeers {
  /** By offset: whose chunk this rank computes on; undefined where the mask leaves nothing to compute. Its own at 0. */
  readonly sources: readonly (number | undefined)[];
  /** By offset: who has this rank's chunk at that offset and computes on it; undefined at 0. */
  readonly destinations: readonly (number | undefined)[];
  /** Rows in the chunk of a rank. */
  rows(rank: number): number;
}

/** The tile of one rank, and who needs its chunks. */
export interface TileDependencies extends Pick<DependencyTable, "needsCompute"> {
  readonly rank: number;
  readonly queries: TilePeers;
  readonly keys: TilePeers;
}

/** The tile of a rank of a grid. A chunk goes to the ranks whose tile has any pair of it. */
export function createTile(grid: Grid, rank: number, dependencies: DependencyTable): TileDependencies {
  const { rows, columns } = grid;
  const { needsCompute, queryRows, keyRows } = dependencies;
  const needsQueries = (tileRank: number, source: number) =>
    someOffset(rows, (y) => needsCompute(source, keyOwner(grid, tileRank, y)));
  const needsKeys = (tileRank: number, source: number) =>
    someOffset(columns, (x) => needsCompute(queryOwner(grid, tileRank, x), source));
  const queries = createPeers(rank, columns, { getRank: (x) => queryOwner(grid, rank, x), isRequired: needsQueries });
  const keys = createPeers(rank, rows, { getRank: (y) => keyOwner(grid, rank, y), isRequired: needsKeys });
  return { rank, needsCompute, queries: { ...queries, rows: queryRows }, keys: { ...keys, rows: keyRows } };
}

/** The tiles of all ranks along an axis, on any grid: each is derived when it is first needed. */
export class TileCache {
  readonly #dependencies: DependencyTable;
  readonly #tiles = new Map<number, TileDependencies>();

  constructor(dependencies: DependencyTable) {
    this.#dependencies = dependencies;
  }

  get(grid: Grid, rank: number): TileDependencies {
    // Of one axis, a grid is known by its columns.
    const key = rank * (grid.rows * grid.columns + 1) + grid.columns;
    let tile = this.#tiles.get(key);
    if (!tile) this.#tiles.set(key, (tile = createTile(grid, rank, this.#dependencies)));
    return tile;
  }
}

/** The peers along one dimension for any of several tiles. */
export function unionOfPeers(tiles: readonly TilePeers[]): TilePeers {
  const [first, ...otherTiles] = tiles;
  if (otherTiles.length === 0) return first!;
  const firstDefinedRanks = (select: (peers: TilePeers) => TilePeers["sources"]) =>
    select(first!).map(
      (rank, offset) =>
        rank ?? otherTiles.map((peers) => select(peers)[offset]).find((peerRank) => peerRank !== undefined),
    );
  return {
    sources: firstDefinedRanks(({ sources }) => sources),
    destinations: firstDefinedRanks(({ destinations }) => destinations),
    rows: (rank) => first!.rows(rank),
  };
}

interface GridLine {
  /** The rank at an offset from this one. */
  getRank(offset: number): number;
  /** Whether one rank computes on the chunk of another. */
  isRequired(consumer: number, producer: number): boolean;
}

function createPeers(rank: number, length: number, { getRank, isRequired }: GridLine): Omit<TilePeers, "rows"> {
  const sources: (number | undefined)[] = [];
  const destinations: (number | undefined)[] = [];
  for (let offset = 0; offset < length; offset++) {
    const [source, destination] = [getRank(offset), getRank(-offset)];
    sources.push(isRequired(rank, source) ? source : undefined);
    destinations.push(offset > 0 && isRequired(destination, rank) ? destination : undefined);
  }
  return { sources, destinations };
}

function someOffset(length: number, predicate: (offset: number) => boolean): boolean {
  for (let offset = 0; offset < length; offset++) if (predicate(offset)) return true;
  return false;
}
