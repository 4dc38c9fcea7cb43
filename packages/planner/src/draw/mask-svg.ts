import {
  checkArgument,
  defineOptions,
  type Mask,
  OptionError,
  option,
  type OptionsOf,
  resolvePlacement,
  resolveShards,
  resolveSlices,
  type Slice,
  type Span,
} from "@mosaic/core";
import { formatPercent } from "./axis.ts";
import { paletteColor } from "./color-scheme.ts";
import {
  drawGroups,
  drawPlaneAxes,
  formatCount,
  groupByType,
  planeScale,
  type SliceGroup,
  slicesByShard,
  totalArea,
} from "./mask-plane.ts";
import { document, heading, isText, page, rect, text, theme, truncate } from "./svg.ts";

export const drawMaskOptions = defineOptions("drawMask", {
  /** Length of the query sequence. */
  queries: option.integer({ min: 1 }),
  /** Length of the key sequence. Default: as many as queries. */
  keys: option.integer({ min: 1, optional: true }),
  /** Heading and title of the document. Default: the mask's name. */
  title: option.custom("a string", isText, { optional: true }),
  /** Text before the area in the line below the heading. Default "". */
  subtitle: option.custom("a string", isText, { default: "" }),
  /** Placement of the queries on shards, each of which has a color; needs `shards`. Default: colors by slice type. */
  placement: option.placement({ optional: true }),
  /** Number of shards. Default: none. */
  shards: option.integer({ min: 1, optional: true }),
});
/** Options of `drawMask`. */
export type DrawMaskOptions = OptionsOf<typeof drawMaskOptions>;

/** Side of the plane for the longer sequence. */
const PLOT_SIZE = 640;
const MARGIN_TOP = 150;
const MARGIN_LEFT = 150;
const LINE_HEIGHT = 22;
const MAX_LEGEND_ENTRIES = 28;

/**
 * Draws a mask as an SVG document, with the number of visible pairs: queries from the top, keys from the left, each
 * slice a polygon. With `placement` and `shards`, slices are cut where the queries change their shard, and the legend
 * has the pairs of each shard relative to the mean.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * import { drawMask } from "@mosaic/planner";
 * const mask = masks.documents([300, 500, 200], masks.slidingWindow(128));
 * drawMask(mask, { queries: 1000 }).includes("103,616 visible pairs"); // => true
 * drawMask(mask, { queries: 1000, placement: "zigzag", shards: 4 }).includes("shard 3"); // => true
 * ```
 * @throws The errors of the mask for these lengths; OptionError if only one of `placement` and `shards` is set, or
 * for more than 200 000 polygons.
 */
export function drawMask(mask: Mask, options: DrawMaskOptions): string {
  checkArgument("drawMask", mask, option.mask());
  const { queries, keys = queries, title = mask.name, subtitle, placement, shards } = drawMaskOptions.parse(options);
  if ((placement === undefined) !== (shards === undefined)) {
    const [givenOption, missingOption] = placement === undefined ? ["shards", "placement"] : ["placement", "shards"];
    throw new OptionError({
      where: "drawMask",
      expected: `${missingOption} beside ${givenOption}`,
      received: `${givenOption} alone`,
    });
  }
  const slices = resolveSlices(mask, queries, keys);
  const groups =
    placement === undefined
      ? groupByType("drawMask", slices)
      : groupByShard(slices, resolveShards(resolvePlacement(placement), shards!, queries));
  const scale = planeScale({ queries, keys }, { left: MARGIN_LEFT, top: MARGIN_TOP, side: PLOT_SIZE });
  const area = totalArea(slices);
  const summary = `${formatCount(area)} visible pairs, ${formatPercent(area / (queries * keys))} of ${formatCount(queries)} × ${formatCount(keys)}`;
  const subtitleLine = subtitle === "" ? summary : `${subtitle} · ${summary}`;
  const plane = { x: MARGIN_LEFT, y: MARGIN_TOP, width: scale.width, height: scale.height };
  const bottom = Math.max(
    MARGIN_TOP + scale.height,
    MARGIN_TOP + Math.min(MAX_LEGEND_ENTRIES + 1, groups.length) * LINE_HEIGHT,
  );
  return document({
    title,
    description: `${subtitleLine}. ${formatCount(slices.length)} slices.`,
    height: bottom + 36,
    body: [
      // Bold letters are wide, so a larger size is assumed.
      heading(truncate(title, 27, page.width - 2 * page.edge), subtitleLine),
      rect(plane, `fill="${theme.track}"`),
      ...drawGroups(groups, scale),
      rect(plane, `fill="none" stroke="${theme.rule}"`),
      drawPlaneAxes({ queries, keys }, scale),
      drawLegend(groups, MARGIN_LEFT + scale.width + 28),
    ],
  });
}

function groupByShard(slices: readonly Slice[], shards: readonly (readonly Span[])[]): readonly SliceGroup[] {
  const shardSlices = slicesByShard("drawMask", slices, shards);
  const areas = shardSlices.map(totalArea);
  const meanArea = areas.reduce((sum, area) => sum + area, 0) / areas.length;
  return shardSlices.map((each, i) => {
    const load = meanArea === 0 ? "no pairs" : `${(areas[i]! / meanArea).toFixed(2)} × the mean`;
    return { name: `shard ${i}: ${load}`, owner: `shard ${i}`, fill: paletteColor(i), slices: each };
  });
}

function drawLegend(groups: readonly SliceGroup[], left: number): string {
  const drawEntry = (label: string, fill: string, i: number): string => {
    const y = MARGIN_TOP + 12 + i * LINE_HEIGHT;
    const swatch = rect({ x: left, y: y - 11, width: 13, height: 13 }, `fill="${fill}" rx="3"`);
    return swatch + text(left + 20, y, truncate(label, 13, page.width - left - 24), `font-size="13"`);
  };
  const shownEntries = groups.slice(0, MAX_LEGEND_ENTRIES).map(({ name, fill }, i) => drawEntry(name, fill, i));
  const numHiddenEntries = groups.length - shownEntries.length;
  return [
    ...shownEntries,
    ...(numHiddenEntries > 0 ? [drawEntry(`and ${numHiddenEntries} more`, theme.rule, shownEntries.length)] : []),
  ].join("\n");
}
