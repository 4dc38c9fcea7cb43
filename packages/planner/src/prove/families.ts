import type { Span } from "@mosaic/core";
import { commonPositions } from "./area.ts";
import type { Judging, Question } from "./judging.ts";
import type { Side } from "./values.ts";

/** Lists with more spans in all are looked at sum by sum. */
const MOST_SPANS = 10_000;

/**
 * Sums are mostly over the shards of one layout, each once. Whether the lists of positions that tiles have are pairwise
 * apart is found out once for all tiles; a sum then only has to have none twice.
 */
export class Families {
  readonly #judging: Judging;
  readonly #sides: Readonly<Record<Side, Family>>;
  #sums = 0;

  constructor(judging: Judging) {
    this.#judging = judging;
    this.#sides = { queries: new Family(judging, "queries"), keys: new Family(judging, "keys") };
  }

  /** Whether no two tiles of a sum share a position on the other side; if not, they may. */
  areApart({ tiles: ids, side }: Question): boolean {
    const { tiles } = this.#judging;
    const keys = side === "queries";
    const { seen, isApart } = keys ? this.#sides.keys : this.#sides.queries;
    const sum = ++this.#sums;
    for (const id of ids) {
      const number = keys ? tiles.keysOf(id) : tiles.queriesOf(id);
      if (seen[number] === sum) return false;
      seen[number] = sum;
    }
    return ids.length < 2 || isApart();
  }
}

/** The positions that tiles have on one side. */
class Family {
  /** For each list of positions, the last sum that had it. */
  readonly seen: number[] = [];
  readonly #judging: Judging;
  readonly #side: Side;
  readonly #spans: Span[] = [];
  #compared = 0;
  #apart = true;

  constructor(judging: Judging, side: Side) {
    this.#judging = judging;
    this.#side = side;
  }

  /** Whether no two lists share a position. Compares only those that are new since it was last asked. */
  readonly isApart = (): boolean => {
    const ids = this.#judging.tiles.distinct[this.#side];
    for (; this.#apart && this.#compared < ids.length; this.#compared++) {
      const { sorted: spans } = this.#judging.positions.at(ids[this.#compared]!);
      this.#apart =
        this.#spans.length < MOST_SPANS && !spans.some((span) => this.#spans.some((known) => meet(known, span)));
      this.#spans.push(...spans);
    }
    return this.#apart;
  };
}

function meet(a: Span, b: Span): boolean {
  const first = Math.max(a.start, b.start);
  const last = Math.min(a.start + (a.length - 1) * a.step, b.start + (b.length - 1) * b.step);
  return first <= last && commonPositions(a, b) !== undefined;
}
