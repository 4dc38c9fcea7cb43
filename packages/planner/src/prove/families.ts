import type { Span } from "@mosaic/core";
import { commonPositions } from "./area.ts";
import type { VerifierContext, Query } from "./context.ts";
import type { Side } from "./values.ts";

/** Lists with more spans in all are looked at sum by sum. */
const MOST_SPANS = 10_000;

/**
 * Sums are mostly over the shards of one layout, each once. Whether the lists of positions that tiles have are pairwise
 * apart is found out once for all tiles; a sum then only has to have none twice.
 */
export class Families {
  readonly #context: VerifierContext;
  readonly #sides: Readonly<Record<Side, Family>>;
  #sums = 0;

  constructor(context: VerifierContext) {
    this.#context = context;
    this.#sides = { queries: new Family(context, "queries"), keys: new Family(context, "keys") };
  }

  /** Whether no two tiles of a sum share a position on the other side; if not, they may. */
  areApart({ tiles: ids, side }: Query): boolean {
    const { tiles } = this.#context;
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
  readonly #context: VerifierContext;
  readonly #side: Side;
  readonly #spans: Span[] = [];
  #compared = 0;
  #apart = true;

  constructor(context: VerifierContext, side: Side) {
    this.#context = context;
    this.#side = side;
  }

  /** Whether no two lists share a position. Compares only those that are new since it was last asked. */
  readonly isApart = (): boolean => {
    const ids = this.#context.tiles.distinct[this.#side];
    for (; this.#apart && this.#compared < ids.length; this.#compared++) {
      const { sorted: spans } = this.#context.positions.at(ids[this.#compared]!);
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
