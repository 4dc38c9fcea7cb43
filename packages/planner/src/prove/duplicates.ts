import { slicesOverlap, type Span } from "@mosaic/core";
import { commonPositions } from "./area.ts";
import type { VerifierContext, Query } from "./context.ts";
import type { Tile } from "./sums.ts";

interface Held {
  readonly span: Span;
  readonly end: number;
  readonly id: number;
  readonly tile: Tile;
}

/** The first two tiles of a sum that compute some pair of its rows both, if any: by their numbers. */
export function findDuplicate(context: VerifierContext, query: Query): readonly [number, number] | undefined {
  const held: Held[] = query.tiles.flatMap((id) => {
    const tile = context.tiles.at(id);
    const { sorted: spans } = query.side === "queries" ? tile.k : tile.q;
    const filled = spans.filter(({ length }) => length > 0);
    return filled.map((span) => ({ span, end: span.start + (span.length - 1) * span.step + 1, id, tile }));
  });
  // From left to right; the sort keeps the order in which tiles were added where they begin at the same position.
  let open: Held[] = [];
  for (const next of held.toSorted((a, b) => a.span.start - b.span.start)) {
    open = open.filter(({ end }) => end > next.span.start);
    const double = open.find((other) => collide(context, query, other, next));
    if (double) return [double.id, next.id];
    open.push(next);
  }
  return undefined;
}

/** Whether two tiles compute some pair of the sum's rows and the positions that these spans share. */
// oxlint-disable-next-line max-params -- of what sum, and what with what
function collide({ record, positions, visibility }: VerifierContext, { side, rows }: Query, a: Held, b: Held): boolean {
  const heads = side === "queries" || (a.tile.firstHead < b.tile.endHead && b.tile.firstHead < a.tile.endHead);
  const common = heads ? commonPositions(a.span, b.span) : undefined;
  if (!common) return false;
  const others = positions.of([common]);
  const [q, k] = side === "queries" ? [rows, others] : [others, rows];
  if (visibility.pairs(q, k, a.tile.mask) === 0) return false;
  if (a.tile.mask === b.tile.mask) return true;
  const { masks } = record.names;
  return masks[a.tile.mask]!.some((one) => masks[b.tile.mask]!.some((two) => slicesOverlap(one, two)));
}
