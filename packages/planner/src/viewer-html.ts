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
  /** The heading, and the document's title. Default "Timeline". */
  title: option.custom("a string", isText, { default: "Timeline" }),
  /** A line below the heading. Default "". */
  subtitle: option.custom("a string", isText, { default: "" }),
  /** Sentences below the heading. Default []. */
  facts: option.array(option.custom("a string", isText), { default: [] }),
  /** What `record` returned of the same call: for the tile map, bytes by link, and load. Default: none, and no such figures. */
  record: option.custom("a record", (value): value is AttentionRecord => typeof value === "object", { optional: true }),
  /** Ranks of a node, as in a profile. Default: the hosts of the record, or one node. */
  ranksPerNode: option.integer({ min: 1, optional: true }),
  /** Events of a timeline, beyond which runs of short ones are merged: the page stays small and fast. Default 200000. */
  maxEvents: option.integer({ min: 1000, default: 200_000 }),
});
/** What a page shows besides timelines. */
export type ViewerHtmlOptions = OptionsOf<typeof viewerHtmlOptions>;

/**
 * Draws a run as an HTML page that needs nothing else, and requests nothing: a timeline of all ranks, to be zoomed, panned and filtered, with its
 * critical path; which rank computes which tile at which step; bytes by link between nodes; memory over time; and each rank's load. Every
 * figure has a table of the same numbers, and all can be used by keyboard.
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
 * @throws OptionError for what is no timeline or no record, and for options that do not exist.
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

/** Of a record of classes only the representatives are there: no whole map. */
function encodeRecord(
  record: AttentionRecord,
  ranksPerNode: number | undefined,
): Pick<ViewerData, "tiles" | "links" | "load"> {
  if (record.classes.order > 1) return {};
  const load = encodeLoad(record);
  return { tiles: encodeTiles(record), links: encodeLinks(record, ranksPerNode), ...(load && { load }) };
}

/** Stands in the page where its data belongs. */
const DATA_MARKER = "<!-- data -->";

let template: string | undefined;

/**
 * The page without data: the line `<!-- data -->` stands for it. In its place go script elements of the type application/json: of the
 * class "trace-data" one for each rank that traced itself, with `<` written as `\u003c`.
 *
 * @example
 * ```ts
 * import { viewerTemplate } from "@mosaic/planner";
 * viewerTemplate().includes("<!-- data -->"); // => true
 * ```
 */
export function viewerTemplate(): string {
  // Beside index.js, and as far from the sources.
  template ??= readFileSync(new URL("../dist/viewer.html", import.meta.url), "utf8");
  expectValue("viewerTemplate", template.includes(DATA_MARKER), "dist/viewer.html with the data placeholder", template);
  return template;
}

function toScriptJson(value: unknown): string {
  return JSON.stringify(value).replaceAll("<", "\\u003c");
}
