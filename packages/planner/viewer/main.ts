// The script of the page: reads its data, and builds the figures for which there is data.
import { secondsText } from "../src/draw/quantity.ts";
import type { RankTraceData, ViewerData } from "../src/view/data.ts";
import { createLoadSection, createMemorySection } from "./charts.ts";
import { assignStyles } from "./colors.ts";
import { createElement } from "./elements.ts";
import { createLinkSection } from "./link-view.ts";
import { decodeRun, decodeTraces, Kinds, type Run } from "./model.ts";
import { createTileSection } from "./tile-view.ts";
import { createTimelineSection } from "./timeline-section.ts";

function readScripts<T>(kind: string): readonly T[] {
  const scripts = [...document.querySelectorAll(`script.${kind}`)];
  return scripts.map(({ textContent }) => JSON.parse(textContent ?? "") as T);
}

function showPage(): void {
  const [data] = readScripts<ViewerData>("viewer-data");
  const traces = readScripts<RankTraceData>("trace-data");
  const kinds = new Kinds();
  const runs = [
    ...(data?.runs.map((run) => decodeRun(run, kinds)) ?? []),
    ...(traces.length > 0 ? [decodeTraces(traces, kinds)] : []),
  ];
  const main = document.querySelector("main")!;
  const { title = document.title, subtitle = "", facts = [] } = data ?? {};
  main.append(createElement("h1", {}, title));
  if (subtitle !== "") main.append(createElement("p", { class: "subtitle" }, subtitle));
  const notes = [...facts, ...describeRuns(runs, traces)];
  main.append(createElement("ul", { class: "facts" }, ...notes.map((fact) => createElement("li", {}, fact))));
  if (runs.length === 0) {
    main.append(createElement("p", { role: "alert" }, "This page has no data: no rank wrote a trace."));
    return;
  }
  const timeline = createTimelineSection({ runs, kinds, styles: assignStyles(runs, kinds) });
  const memory = createMemorySection(runs);
  const sections = [
    timeline.section,
    ...(data?.tiles ? [createTileSection(data.tiles)] : []),
    ...(data?.links ? [createLinkSection(data.links)] : []),
    ...(memory ? [memory] : []),
    ...(data?.load ? [createLoadSection(data.load)] : []),
  ];
  main.append(...sections);
  document
    .querySelector("nav")!
    .append(
      ...sections.map((each) =>
        createElement("a", { href: `#${each.id}` }, each.querySelector("h2")!.textContent ?? ""),
      ),
    );
  timeline.start();
  document.documentElement.dataset["ready"] = "true";
}

function describeRuns(runs: readonly Run[], traces: readonly RankTraceData[]): readonly string[] {
  const notes = runs.map(({ name, seconds, ranks, events, clockError }) => {
    const numEvents = ranks.reduce((sum, rank) => sum + rank.events.count, 0);
    const mergedText =
      numEvents < events ? `, drawn as ${numEvents.toLocaleString("en-US")} after merging short events` : "";
    const clockErrorText = clockError > 0 ? `; clock error between hosts up to ${secondsText(clockError)}` : "";
    const namePrefix = name === "" ? "" : `${name[0]!.toUpperCase()}${name.slice(1)}: `;
    return `${namePrefix}${ranks.length} ranks, ${secondsText(seconds)}, ${events.toLocaleString("en-US")} events${mergedText}${clockErrorText}.`;
  });
  const size = Math.max(0, ...traces.map(({ worldSize }) => worldSize));
  const numMissingRanks = size - new Set(traces.map(({ rank }) => rank)).size;
  const traceNotes = new Set(traces.flatMap(({ note }) => (note === undefined ? [] : [note])));
  return [
    ...notes,
    ...(numMissingRanks > 0 ? [`${numMissingRanks} of ${size} ranks wrote no trace.`] : []),
    ...traceNotes,
  ];
}

showPage();
