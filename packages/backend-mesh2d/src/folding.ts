import { type Coordinate, type PlacedKv, OptionError } from "@mosaic/core";
import type { Pass, Runner, Tile, Tiling } from "./pass.ts";

/** What a folding is made from. */
export interface FoldingParts<Part extends PlacedKv> {
  readonly tiling: Tiling<Part>;
  /** Where the keys of each part come from, in order. */
  readonly from: readonly Coordinate[];
  /** Chooses the form when the first tile is there. */
  readonly begin: (pass: Pass, tile: Tile) => Runner;
}

/** A forward or a backward whose keys come part by part. */
export class Folding<Part extends PlacedKv> implements Disposable {
  readonly #parts: FoldingParts<Part>;
  #runner: Runner | undefined;
  #next = 0;

  constructor(parts: FoldingParts<Part>) {
    this.#parts = parts;
  }

  add(part: Part): void {
    const { tiling, from, begin } = this.#parts;
    this.#checkPlace(tiling.pass.label, part.from, from[this.#next]);
    const tile = tiling.tile(this.#next++, part);
    this.#runner ??= begin(tiling.pass, tile);
    this.#runner.add(tile);
  }

  /** Who needs what was worked out from the places that were named: keys from elsewhere would be sent to the wrong ranks. */
  #checkPlace(label: string, from: Coordinate, named: Coordinate | undefined): void {
    if (named && Object.keys(named).every((axis) => named[axis] === from[axis])) return;
    throw new OptionError({
      where: label,
      expected: named ? `keys from ${JSON.stringify(named)}` : "no more keys",
      received: `keys from ${JSON.stringify(from)}`,
      remedy: "give inParts the places of all parts, in the order in which they come",
    });
  }

  [Symbol.dispose](): void {
    this.#runner?.[Symbol.dispose]();
  }
}
