import { type DependencyTable, modulo } from "@mosaic/core/context-parallel";

/** A grid of rows · columns ranks, row-major: rank = row · columns + column. */
export interface Grid {
  readonly rows: number;
  readonly columns: number;
}

// The ranks of a row share their queries, and the ranks of a column share their keys. Offset 0 is the rank itself, so
// its tile contains block (rank, rank), for which no transfer is needed. This is the local Q-KV property of
// Mesh-Attention, figure 5. Offsets may be negative: if rank b is at offset −x of rank a, then a is at offset x of b.

/** Returns the owner of the queries in row x of the tile of `rank`. */
export function queryOwner({ columns }: Grid, rank: number, x: number): number {
  const column = rank % columns;
  return rank - column + modulo(column + x, columns);
}

/** Returns the owner of the keys in column y of the tile of `rank`. */
export function keyOwner({ rows, columns }: Grid, rank: number, y: number): number {
  return modulo(rank + y * columns, rows * columns);
}

/**
 * Returns the grid of `size` ranks that sends the fewest bytes in one forward and backward when all messages have the
 * same element size. In units of one chunk of queries, a column costs 5 and a row costs 6 / `queriesPerKvHead` for each
 * part of the keys. Of two equal grids, returns the one with more columns.
 *
 * Each part of the keys is sent separately, whereas queries are sent once. Wide grids therefore send less, but hold the
 * queries of a whole row until the last part. Grids wider than the one closest to a square are not considered.
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

/** One dimension of a rank's tile: the queries along its row, or the keys along its column. Ranks are group ranks. */
export interface TilePeers {
  /**
   * By offset: the owner of the chunk that this rank computes on; undefined if no pair is visible. Offset 0 is this
   * rank.
   */
  readonly sources: readonly (number | undefined)[];
  /**
   * By offset: the rank that computes on this rank's chunk at that offset of its tile, if any; undefined at offset 0.
   */
  readonly destinations: readonly (number | undefined)[];
  /** Returns the number of rows in the chunk of a rank. */
  rows(rank: number): number;
}

/** The tile of one rank, and the ranks that need its chunks. */
export interface TileDependencies extends Pick<DependencyTable, "needsCompute"> {
  readonly rank: number;
  readonly queries: TilePeers;
  readonly keys: TilePeers;
}

/** Creates the tile of a rank of a grid. A chunk is sent to each rank whose tile contains a visible pair of it. */
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

/** The tiles of all ranks along an axis, for any grid. Each tile is created on first use. */
export class TileCache {
  readonly #dependencies: DependencyTable;
  readonly #tiles = new Map<number, TileDependencies>();

  constructor(dependencies: DependencyTable) {
    this.#dependencies = dependencies;
  }

  get(grid: Grid, rank: number): TileDependencies {
    // The number of columns identifies a grid along one axis.
    const key = rank * (grid.rows * grid.columns + 1) + grid.columns;
    let tile = this.#tiles.get(key);
    if (!tile) this.#tiles.set(key, (tile = createTile(grid, rank, this.#dependencies)));
    return tile;
  }
}

/** Returns, along one dimension, the union of the peers of several tiles. */
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
  /** Returns the rank at an offset. */
  getRank(offset: number): number;
  /** Returns whether `consumer` computes on the chunk of `producer`. */
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
