import { defineOptions, option, type OptionsOf } from "@mosaic/core";
import { isText } from "./svg.ts";

export const queryKeyPlacementsOptions = defineOptions("drawDispatch: placements", {
  /** Placement of the queries. */
  queries: option.placement(),
  /** Placement of the keys. */
  keys: option.placement(),
});

export const placementTimesOptions = defineOptions("drawDispatch: times", {
  /** Predicted seconds of a step with the placement before. */
  before: option.number({ min: 0 }),
  /** Predicted seconds of a step with the placement after. */
  after: option.number({ min: 0 }),
});

export const drawDispatchOptions = defineOptions("drawDispatch", {
  /** Length of the sequence; if `keys` is set, of the query sequence. */
  queries: option.integer({ min: 1 }),
  /** Length of the key sequence. Default: as many as queries. */
  keys: option.integer({ min: 1, optional: true }),
  /** Number of ranks that share the sequence. */
  ranks: option.integer({ min: 1, max: 256 }),
  /** Placement to compare with. Default "contiguous". */
  before: option.either(option.placement(), option.nested(queryKeyPlacementsOptions), {
    expected: "a placement, or { queries, keys } with a placement for each",
    default: "contiguous",
  }),
  /** Placement returned by `dispatch` or `crossDispatch` of @mosaic/backend-flex, or any other. */
  after: option.either(option.placement(), option.nested(queryKeyPlacementsOptions), {
    expected: "a placement, or { queries, keys } with a placement for each",
  }),
  /** Bytes of k and v of one key: 2 · Hkv · D · bytes of the dtype. Default: rows are counted. */
  bytesPerRow: option.number({ above: 0, optional: true }),
  /**
   * Predicted seconds of a step, `time` of `evaluateDispatch`, as { before, after }. Default: only loads and rows are
   * shown.
   */
  times: option.nested(placementTimesOptions, { optional: true }),
  /** Heading and title of the document. Default: the mask's name and the number of ranks. */
  title: option.custom("a string", isText, { optional: true }),
  /** Text before the facts in the line below the heading. Default "". */
  subtitle: option.custom("a string", isText, { default: "" }),
});
/** Options of `drawDispatch`. */
export type DrawDispatchOptions = OptionsOf<typeof drawDispatchOptions>;
