import { readFileSync } from "node:fs";
import { defineOptions, expectValue, option, type OptionsOf } from "@mosaic/core";
import { escape, isText } from "./draw/svg.ts";
import { toNamedTimelines, type Timelines } from "./draw/timeline-svg.ts";
import { type AttentionRecord, checkRecord } from "./record.ts";
import type { ViewerData } from "./view/data.ts";
import { encodeRun } from "./view/encode.ts";
import { encodeLinks } from "./view/links.ts";
import { encodeLoad } from "./view/load.ts";
import { encodeTiles } from "./view/tiles.ts";

export const viewerHtmlOptions = defineOptions("viewerHtml", {
  /** Heading and title of the document. Default "Timeline". */
  title: option.custom("a string", isText, { default: "Timeline" }),
  /** A line below the heading. Default "". */
  subtitle: option.custom("a string", isText, { default: "" }),
  /** Sentences below the heading. Default []. */
  facts: option.array(option.custom("a string", isText), { default: [] }),
  /** Record of the same call, for the tile map, bytes by link, and load. Default: none, without these figures. */
  record: option.custom("a record", (value): value is AttentionRecord => typeof value === "object", { optional: true }),
  /** Ranks of a node, as in a profile. Default: the hosts of the record, or one node. */
  ranksPerNode: option.integer({ min: 1, optional: true }),
  /**
   * Maximum number of events of a timeline. Beyond it, runs of short events are merged, so that the page stays small
   * and fast. Default 200000.
   */
  maxEvents: option.integer({ min: 1000, default: 200_000 }),
});
/** Parts of a page other than its timelines. */
export type ViewerHtmlOptions = OptionsOf<typeof viewerHtmlOptions>;

/**
 * Draws a run as a self-contained HTML page that makes no requests. It has a timeline of all ranks, which can be
 * zoomed, panned and filtered, with its critical path; the rank that computes each tile, and its step; bytes by link
 * between nodes; memory over time; and the load of each rank. Every figure has a table of the same numbers, and all
 * can be used by keyboard.
 *
 * With `predicted` and `measured`, both timelines are drawn on one axis.
 *
 * @example
 * ```ts
 * import { local } from "@mosaic/core";
 * import { predict, profiles, viewerHtml } from "@mosaic/planner";
 * const call = { backend: local(), mesh: { dp: 2 }, tokens: 1024, numHeads: 4, headDim: 64 };
 * const { simulation, record } = predict(call, profiles["h100-ib400"]);
 * const page = viewerHtml(simulation, { title: "Two ranks", record, ranksPerNode: 8 });
 * page.includes("<title>Two ranks</title>"); // => true
 * /(src|href)="https?:/.test(page); // => false
 * ```
 * @throws OptionError for values that are no timeline or no record, and for unknown options.
 */
export function viewerHtml(timelines: Timelines, options?: ViewerHtmlOptions): string {
  const { title, subtitle, facts, record, ranksPerNode, maxEvents } = viewerHtmlOptions.parse(options);
  const namedTimelines = toNamedTimelines("viewerHtml", timelines);
  if (record) checkRecord("viewerHtml", record);
  const data: ViewerData = {
    format: "mosaic-viewer/1",
    title,
    subtitle,
    facts,
    runs: namedTimelines.map(({ name, timeline }) => encodeRun(name, timeline, maxEvents)),
    ...(record && encodeRecord(record, ranksPerNode)),
  };
  const titledPage = viewerTemplate().replace(/<title>[^<]*<\/title>/, () => `<title>${escape(title)}</title>`);
  return titledPage.replace(
    DATA_MARKER,
    () => `<script type="application/json" class="viewer-data">${toScriptJson(data)}</script>`,
  );
}

/** Encodes the figures of a record. A record of classes has only the representatives, so there is no complete map. */
function encodeRecord(
  record: AttentionRecord,
  ranksPerNode: number | undefined,
): Pick<ViewerData, "tiles" | "links" | "load"> {
  if (record.classes.order > 1) return {};
  const load = encodeLoad(record);
  return { tiles: encodeTiles(record), links: encodeLinks(record, ranksPerNode), ...(load && { load }) };
}

/** Placeholder in the page for its data. */
const DATA_MARKER = "<!-- data -->";

let template: string | undefined;

/**
 * Returns the page without data, with the line `<!-- data -->` in its place. Replace that line with script elements
 * of the type application/json: one of the class "trace-data" for each rank that traced itself, with `<` written as
 * `\u003c`.
 *
 * @example
 * ```ts
 * import { viewerTemplate } from "@mosaic/planner";
 * viewerTemplate().includes("<!-- data -->"); // => true
 * ```
 */
export function viewerTemplate(): string {
  // The relative path is the same from dist/index.js and from the sources.
  template ??= readFileSync(new URL("../dist/viewer.html", import.meta.url), "utf8");
  expectValue("viewerTemplate", template.includes(DATA_MARKER), "dist/viewer.html with the data placeholder", template);
  return template;
}

function toScriptJson(value: unknown): string {
  return JSON.stringify(value).replaceAll("<", "\\u003c");
}
