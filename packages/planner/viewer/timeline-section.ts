import { bytesText, percentText, secondsText } from "../src/draw/quantity.ts";
import { peakBytes } from "./memory.ts";
import type { Styles } from "./colors.ts";
import { createButton, createElement, wrapInLabel, createSection, createTable } from "./elements.ts";
import type { Kinds, Rank, Run } from "./model.ts";
import { type SelectedEvent, TimelineView } from "./timeline-view.ts";

/** The timelines of the page. */
export interface Timelines {
  readonly runs: readonly Run[];
  readonly kinds: Kinds;
  readonly styles: Styles;
}

const KEYBOARD_HELP =
  "Arrow keys pan; plus and minus zoom in time, brackets zoom in ranks; Home shows all; N and P step through the events of a rank, J and K through ranks; Escape deselects. With a pointer: drag to pan, Control and wheel to zoom in time, Alt and wheel to zoom in ranks, click to select.";

/** Creates the section with the timeline, its controls, and tables of the same numbers. */
export function createTimelineSection(timelines: Timelines): { readonly section: HTMLElement; start(): void } {
  const { runs, styles } = timelines;
  const frame = createElement("div");
  const details = createElement(
    "p",
    { class: "details", role: "status", "aria-live": "polite" },
    "No event is selected.",
  );
  const output = createElement("output", { class: "window" });
  let selectedEvent: SelectedEvent | undefined;
  const eventsTable = createEventTable(timelines, () => selectedEvent);
  const controls = createElement("div", { class: "controls" });
  const start = (): void => {
    const view = new TimelineView(frame, timelines, {
      onSelect(event) {
        selectedEvent = event;
        details.textContent = event ? view.describeEvent(event) : "No event is selected.";
        eventsTable.dispatchEvent(new Event("refresh"));
      },
      onViewChange({ start, end, first, last }) {
        output.value = `${secondsText(start)} to ${secondsText(end)}, ${Math.ceil(last - first)} ranks`;
      },
    });
    controls.append(
      ...createViewControls(view),
      ...createFilterControls(view, timelines),
      createPathControl(view, timelines, details),
      output,
    );
    view.showAll();
  };
  return {
    start,
    section: createSection(
      "timeline",
      "Timeline",
      createElement("p", { id: "timeline-keys", class: "hint" }, KEYBOARD_HELP),
      controls,
      frame,
      createLegend(styles, runs),
      details,
      createRankTable(runs),
      eventsTable,
    ),
  };
}

function createViewControls(view: TimelineView): readonly HTMLElement[] {
  return [
    createButton("−", "Zoom out in time", () => view.zoomTime(2)),
    createButton("+", "Zoom in on time", () => view.zoomTime(0.5)),
    createButton("All", "Show all ranks and times", () => view.showAll()),
  ];
}

/** Creates filters: timelines by name, lanes, and words that names of events must contain. */
function createFilterControls(view: TimelineView, { runs, kinds }: Timelines): readonly HTMLElement[] {
  const searchInput = createElement("input", { type: "search", placeholder: "attend, ring(sp), …", size: "18" });
  const laneSelect = createSelect(["both lanes", "compute", "communication"]);
  const runSelect = createSelect(["all timelines", ...runs.map(({ name }) => name)]);
  const applyFilter = (): void => {
    const words = searchInput.value.toLowerCase().split(/\s+/).filter(Boolean);
    const isKindShown = Uint8Array.from(kinds.allKinds, ({ lane, name, label = "" }) => {
      const text = `${name} ${label}`.toLowerCase();
      const isInLane = laneSelect.value === "both lanes" || laneSelect.value === lane;
      return isInLane && words.every((word) => text.includes(word)) ? 1 : 0;
    });
    const shownRuns = [...runs.keys()].filter(
      (run) => runSelect.selectedIndex <= 0 || runSelect.selectedIndex - 1 === run,
    );
    view.filter(shownRuns, isKindShown);
  };
  for (const control of [searchInput, laneSelect, runSelect]) control.addEventListener("input", applyFilter);
  const filters = [wrapInLabel("Filter", searchInput), wrapInLabel("Lanes", laneSelect)];
  return runs.length > 1 ? [...filters, wrapInLabel("Show", runSelect)] : filters;
}

function createSelect(options: readonly string[]): HTMLSelectElement {
  return createElement("select", {}, ...options.map((each) => createElement("option", {}, each)));
}

function createPathControl(view: TimelineView, { runs }: Timelines, details: HTMLElement): HTMLLabelElement {
  const checkbox = createElement("input", { type: "checkbox" });
  checkbox.addEventListener("input", () => {
    const paths = view.showCriticalPath(checkbox.checked);
    if (!checkbox.checked) return;
    details.textContent = paths
      .map((path, run) => {
        const { name, ranks, seconds } = runs[run]!;
        const pathSeconds = path.reduce((sum, { rank, event }) => {
          const { start, end } = ranks[rank]!.events;
          return sum + end[event]! - start[event]!;
        }, 0);
        const numRanks = new Set(path.map(({ rank }) => rank)).size;
        return `Critical path${name === "" ? "" : `, ${name}`}: ${path.length} events on ${numRanks} ${numRanks === 1 ? "rank" : "ranks"}, ${percentText(Math.min(1, pathSeconds / seconds))} of ${secondsText(seconds)}.`;
      })
      .join(" ");
  });
  return wrapInLabel("Critical path", checkbox);
}

function createLegend({ compute, communication }: Styles, runs: readonly Run[]): HTMLElement {
  const entries = [...compute, ...communication].map(({ name, fill }) => {
    const swatch = createElement("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = fill;
    return createElement("li", {}, swatch, name);
  });
  const orderText = runs.length > 1 ? ` For each rank, ${runs.map(({ name }) => name).join(" is above ")}.` : "";
  const legendText = createElement(
    "p",
    { class: "hint" },
    `Compute is drawn above communication, or on top of it where rows are too short for two lanes. Paler colors mark pixels whose time is only partly covered by events.${orderText}`,
  );
  return createElement("div", { class: "legend" }, createElement("ul", {}, ...entries), legendText);
}

interface RankRow {
  readonly run: Run;
  readonly rank: Rank;
}

function createRankTable(runs: readonly Run[]): HTMLDetailsElement {
  const formatShare = (seconds: number, { run }: RankRow): string =>
    percentText(run.seconds > 0 ? seconds / run.seconds : 0);
  const sumBytes = ({ events }: Rank, direction: "sent" | "received"): number =>
    events[direction].reduce((sum, each) => sum + each, 0);
  return createTable<RankRow>(
    "activity by rank",
    [
      { name: "rank", isNumber: true, text: ({ rank }) => `${rank.rank}` },
      ...(runs.length > 1 ? [{ name: "timeline", text: ({ run }: RankRow) => run.name }] : []),
      {
        name: "place",
        text: ({ rank }) =>
          Object.entries(rank.at)
            .map(([axis, coordinate]) => `${axis} ${coordinate}`)
            .join(", "),
      },
      { name: "computing", isNumber: true, text: (row) => formatShare(row.rank.computing, row) },
      { name: "waiting for transfers", isNumber: true, text: (row) => formatShare(row.rank.waiting, row) },
      {
        name: "idle",
        isNumber: true,
        text: (row) => formatShare(Math.max(0, row.run.seconds - row.rank.computing - row.rank.waiting), row),
      },
      { name: "sent", isNumber: true, text: ({ rank }) => bytesText(sumBytes(rank, "sent")) },
      { name: "received", isNumber: true, text: ({ rank }) => bytesText(sumBytes(rank, "received")) },
      {
        name: "peak memory",
        isNumber: true,
        text: ({ rank }) => (rank.memory ? bytesText(peakBytes(rank)) : "unknown"),
      },
    ],
    () => runs.flatMap((run) => run.ranks.map((rank) => ({ run, rank }))),
  );
}

/** Creates the table of events of the selected rank, or of the first rank, from the selected event on. */
function createEventTable(
  { runs, kinds }: Timelines,
  getSelection: () => SelectedEvent | undefined,
): HTMLDetailsElement {
  const getRank = (): Rank | undefined => {
    const { run = 0, rank = 0 } = getSelection() ?? {};
    return runs[run]?.ranks[rank];
  };
  const getKind = (event: number) => kinds.allKinds[getRank()!.events.kind[event]!]!;
  const formatTime = (column: "start" | "end") => (event: number) => secondsText(getRank()!.events[column][event]!);
  return createTable<number>(
    "events of the selected rank, from the selected event on",
    [
      { name: "event", isNumber: true, text: (event) => `${event}` },
      { name: "lane", text: (event) => getKind(event).lane },
      { name: "name", text: (event) => getKind(event).name },
      { name: "label", text: (event) => getKind(event).label ?? "" },
      { name: "start", isNumber: true, text: formatTime("start") },
      { name: "end", isNumber: true, text: formatTime("end") },
      {
        name: "sent",
        isNumber: true,
        text: (event) => (getKind(event).lane === "communication" ? bytesText(getRank()!.events.sent[event]!) : ""),
      },
    ],
    () => {
      const events = getRank()?.events;
      const firstEvent = Math.max(0, getSelection()?.event ?? 0);
      return Array.from({ length: Math.max(0, (events?.count ?? 0) - firstEvent) }, (_, i) => firstEvent + i);
    },
  );
}
