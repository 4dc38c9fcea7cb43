import { commonPositions } from "./area.ts";
import type { VerifierContext, Query } from "./context.ts";
import { positionsText, type Side } from "./values.ts";
import type { Span } from "@mosaic/core";

/** Names the shards whose pairs with some rows are missing. */
export function missingText(
  context: VerifierContext,
  query: Query,
  { short, mask }: { readonly short: number; readonly mask: number },
): string {
  const { record, tiles, relabelling } = context;
  const { side } = query;
  const other = side === "queries" ? "keys" : "queries";
  const group = side === "keys" ? record.options.numHeads / record.options.numKvHeads : 1;
  const shards = relabelling.shards[other];
  const spans = Array.from({ length: shards.count }, (_, shard) => shards.spans(shard)).flat();
  const missing = spans.filter((span) => {
    let found = 0;
    for (const id of query.tiles) {
      const own = (side === "queries" ? tiles.at(id).k : tiles.at(id).q).sorted;
      const common = own.map((each) => commonPositions(each, span)).filter((each) => each !== undefined);
      found += (side === "keys" ? tiles.headsOf(id) : 1) * pairs(context, query, common, tiles.maskOf(id));
    }
    return found < group * pairs(context, query, [span], mask);
  });
  const rows = positionsText(query.rows.spans);
  return `${side} ${rows} and ${other} ${positionsText(missing)} do not meet: ${short} pairs are missing`;
}

// oxlint-disable-next-line max-params -- of what sum, and what with what
function pairs(
  { positions, visibility }: VerifierContext,
  query: Query,
  others: readonly Span[],
  mask: number,
): number {
  const all = positions.of(others);
  const { side, rows } = query as { side: Side; rows: typeof all };
  return side === "queries" ? visibility.pairs(rows, all, mask) : visibility.pairs(all, rows, mask);
}
