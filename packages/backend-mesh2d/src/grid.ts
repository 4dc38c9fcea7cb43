/** p ranks in rows · columns places, row-major: rank = row · columns + column. */
export interface Grid {
  readonly rows: number;
  readonly columns: number;
}

// The ranks of a row share their queries, those of a column their keys. What is at offset 0 is a rank's own, so that its
// tile holds block (rank, rank) and neither its queries nor its keys travel to it: the local Q-KV property of
// Mesh-Attention, figure 5. Offsets may be negative: the rank at offset −x has this one at offset x.

/** Whose queries `rank` works on in row x of its tile. */
export function queriesAt({ columns }: Grid, rank: number, x: number): number {
  const column = rank % columns;
  return rank - column + around(column + x, columns);
}

/** Whose keys `rank` works on in column y of its tile. */
export function keysAt({ rows, columns }: Grid, rank: number, y: number): number {
  return around(rank + y * columns, rows * columns);
}

/**
 * The grid of p ranks that sends the fewest bytes in a forward and a backward, when `group` query heads share a key head
 * and messages are of one width: per column 5 chunks of queries' size, per row 6 / group. The wider one of two equals.
 *
 * Keys that come in `parts` make their way each time, queries once: wide grids then send less, but hold the queries of a
 * whole row until the last part. So none is wider than the one nearest to a square.
 */
export function bestGrid(size: number, group: number, parts: number): Grid {
  const sent = ({ rows, columns }: Grid) => 5 * (columns - 1) + (6 / group) * parts * (rows - 1);
  let columns = Math.ceil(Math.sqrt(size) - 1e-9);
  while (size % columns !== 0) columns++;
  let best: Grid = { rows: size / columns, columns };
  for (columns--; columns >= 1; columns--) {
    const grid = { rows: size / columns, columns };
    if (size % columns === 0 && sent(grid) < sent(best)) best = grid;
  }
  return best;
}

function around(rank: number, size: number): number {
  return ((rank % size) + size) % size;
}
