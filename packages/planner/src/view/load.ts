import { slicesByShard, totalArea } from "../draw/mask-plane.ts";
import type { AttentionRecord } from "../record.ts";
import type { LoadData } from "./data.ts";

/** Maximum number of cut slices, which striped shards of long sequences exceed. The page then has no load. */
const MAX_RANGE_SLICE_PAIRS = 200_000;

/** Returns the number of pairs visible to the queries of each rank. */
export function encodeLoad(record: AttentionRecord): LoadData | undefined {
  const { mask, placement } = record.options;
  const ranks = record.ranks.filter(({ firstSequence }) => firstSequence === 0);
  const shards = ranks.map(({ at }) => record.queries.spans(at));
  const numContiguousRanges = shards.flat().reduce((sum, { length, step }) => sum + (step === 1 ? 1 : length), 0);
  if (numContiguousRanges * record.slices.length > MAX_RANGE_SLICE_PAIRS) return undefined;
  return {
    mask: Array.isArray(mask) ? "sample masks" : (mask as { readonly name: string }).name,
    placement: placement.name,
    ranks: ranks.map(({ tape }) => tape.rank),
    pairs: slicesByShard("viewerHtml", record.slices, shards).map(totalArea),
  };
}
