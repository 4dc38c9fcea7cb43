import type { TileData } from "../src/view/data.ts";

/** Rank and step of each cell of one layer; the rank is −1 for none. */
export interface Layer {
  readonly rank: Int32Array;
  readonly step: Int32Array;
}

/** Decodes the layers of a tile map, row by row. */
export function decodeTiles({ queries, keys, layers }: TileData): readonly Layer[] {
  return layers.map((runs) => {
    const rank = new Int32Array(queries.length * keys.length);
    const step = new Int32Array(rank.length);
    let cell = 0;
    for (let run = 0; run < runs.length; run += 4) {
      for (let i = 0; i < runs[run]!; i++, cell++) {
        rank[cell] = runs[run + 1]!;
        step[cell] = runs[run + 2]! + i * runs[run + 3]!;
      }
    }
    return { rank, step };
  });
}
