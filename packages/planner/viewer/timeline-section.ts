import { bytesText, percentText, secondsText } from "../src/draw/quantity.ts";
import { peakBytes } from "./memory.ts";
import type { Styles } from "./colors.ts";
import { button, element, labelled, section, tableOf } from "./elements.ts";
import type { Kinds, Rank, Run } from "./model.ts";
import { type SelectedEvent, TimelineView } from "./timeline-view.ts";

/** What the page shows of its timelines. */
export interface Timelines {
  readonly runs: readonly Run[];
  readonly kinds: Kinds;
  readonly styles: Styles;
}

const KEYS =
  "Arrow keys pan; plus and minus zoom in time, brackets zoom in ranks; Home shows all; N and P step through the events of a rank, J and K through ranks; Escape deselects. With a pointer: drag to pan, Control and wheel to zoom in time, Alt and wheel to zoom in ranks, click to select.";

/** The timeline with its controls, and tables of the same numbers. */
export function timelineSection(timelines: Timelines): { readonly section: HTMLElement; start(): void } {
  const { runs, styles } = timelines;
  const frame = element("div");
  const details = element("p", { class: "details", role: "status", "aria-live": "polite" }, "No event is selected.");
  const output = element("output", { class: "window" });
  let selected: SelectedEvent | undefined;
  const events = eventTable(timelines, () => selected);
  const controls = element("div", { class: "controls" });
  const start = (): void => {
    const view = new TimelineView(frame, timelines, {
      onSelect(event) {
        selected = event;
        details.textContent = event ? view.describeEvent(event) : "No event is selected.";
        events.dispatchEvent(new Event("refresh"));
      },
      onView({ start, end, first, last }) {
        output.value = `${secondsText(start)} to ${secondsText(end)}, ${Math.ceil(last - first)} ranks`;
      },
    });
    controls.append(
      ...viewControls(view),
      ...filterControls(view, timelines),
      pathControl(view, timelines, details),
      output,
    );
    view.showAll();
  };
  return {
    start,
    section: section(
      "timeline",
      "Timeline",
      element("p", { id: "timeline-keys", class: "hint" }, KEYS),
      controls,
      frame,
      legend(styles, runs),
      details,
      rankTable(runs),
      events,
    ),
  };
}

function viewControls(view: TimelineView): readonly HTMLElement[] {
  return [
    button("−", "Zoom out in time", () => view.zoomTime(2)),
    button("+", "Zoom in on time", () => view.zoomTime(0.5)),
    button("All", "Show all ranks and times", () => view.showAll()),
  ];
}

/** Runs by name, lanes, and words that names of events must have. */
function filterControls(view: TimelineView, { runs, kinds }: Timelines): readonly HTMLElement[] {
  const words = element("input", { type: "search", placeholder: "attend, ring(sp), …", size: "18" });
  const lanes = choice(["both lanes", "compute", "communication"]);
  const which = choice(["all timelines", ...runs.map(({ name }) => name)]);
  const apply = (): void => {
    const parts = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const isShown = Uint8Array.from(kinds.all, ({ lane, name, label = "" }) => {
      const text = `${name} ${label}`.toLowerCase();
      const isLane = lanes.value === "both lanes" || lanes.value === lane;
      return isLane && parts.every((part) => text.includes(part)) ? 1 : 0;
    });
    const shown = [...runs.keys()].filter((run) => which.selectedIndex <= 0 || which.selectedIndex - 1 === run);
    view.filter(shown, isShown);
  };
  for (const control of [words, lanes, which]) control.addEventListener("input", apply);
  const filters = [labelled("Filter", words), labelled("Lanes", lanes)];
  return runs.length > 1 ? [...filters, labelled("Show", which)] : filters;
}

function choice(options: readonly string[]): HTMLSelectElement {
  return element("select", {}, ...options.map((each) => element("option", {}, each)));
}

function pathControl(view: TimelineView, { runs }: Timelines, details: HTMLElement): HTMLLabelElement {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("input", () => {
    const paths = view.showCriticalPath(box.checked);
    if (!box.checked) return;
    details.textContent = paths
      .map((path, run) => {
        const { name, ranks, seconds } = runs[run]!;
        const spent = path.reduce((sum, { rank, event }) => {
          const { start, end } = ranks[rank]!.events;
          return sum + end[event]! - start[event]!;
        }, 0);
        const visited = new Set(path.map(({ rank }) => rank)).size;
        return `Critical path${name === "" ? "" : `, ${name}`}: ${path.length} events on ${visited} ${visited === 1 ? "rank" : "ranks"}, ${percentText(Math.min(1, spent / seconds))} of ${secondsText(seconds)}.`;
      })
      .join(" ");
  });
  return labelled("Critical path", box);
}

function legend({ compute, communication }: Styles, runs: readonly Run[]): HTMLElement {
  const entries = [...compute, ...communication].map(({ name, fill }) => {
    const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = fill;
    return element("li", {}, swatch, name);
  });
  const order = runs.length > 1 ? ` For each rank, ${runs.map(({ name }) => name).join(" is above ")}.` : "";
  const words = element(
    "p",
    { class: "hint" },
    `Compute is drawn above communication, and over it in low rows. Paler colors mark pixels that are busy for part of their time.${order}`,
  );
  return element("div", { class: "legend" }, element("ul", {}, ...entries), words);
}

interface RankRow {
  readonly run: Run;
  readonly rank: Rank;
}

function rankTable(runs: readonly Run[]): HTMLDetailsElement {
  const share = (seconds: number, { run }: RankRow): string => percentText(run.seconds > 0 ? seconds / run.seconds : 0);
  const total = ({ events }: Rank, way: "sent" | "received"): number =>
    events[way].reduce((sum, each) => sum + each, 0);
  return tableOf<RankRow>(
    "activity by rank",
    [
      { name: "rank", isNumber: true, text: ({ rank }) => `${rank.rank}` },
      ...(runs.length > 1 ? [{ name: "timeline", text: ({ run }: RankRow) => run.name }] : []),
      {
        name: "place",
        text: ({ rank }) =>
          Object.entries(rank.at)
            .map(([axis, place]) => `${axis} ${place}`)
            .join(", "),
      },
      { name: "computing", isNumber: true, text: (row) => share(row.rank.computing, row) },
      { name: "waiting for transfers", isNumber: true, text: (row) => share(row.rank.waiting, row) },
      {
        name: "idle",
        isNumber: true,
        text: (row) => share(Math.max(0, row.run.seconds - row.rank.computing - row.rank.waiting), row),
      },
      { name: "sent", isNumber: true, text: ({ rank }) => bytesText(total(rank, "sent")) },
      { name: "received", isNumber: true, text: ({ rank }) => bytesText(total(rank, "received")) },
      {
        name: "peak memory",
        isNumber: true,
        text: ({ rank }) => (rank.memory ? bytesText(peakBytes(rank)) : "unknown"),
      },
    ],
    () => runs.flatMap((run) => run.ranks.map((rank) => ({ run, rank }))),
  );
}

/** Events of the selected rank, or of the first one, around the selected event. */
function eventTable({ runs, kinds }: Timelines, selection: () => SelectedEvent | undefined): HTMLDetailsElement {
  const rankOf = (): Rank | undefined => {
    const { run = 0, rank = 0 } = selection() ?? {};
    return runs[run]?.ranks[rank];
  };
  const kindOf = (event: number) => kinds.all[rankOf()!.events.kind[event]!]!;
  const time = (column: "start" | "end") => (event: number) => secondsText(rankOf()!.events[column][event]!);
  return tableOf<number>(
    "events of the selected rank, from the selected event on",
    [
      { name: "event", isNumber: true, text: (event) => `${event}` },
      { name: "lane", text: (event) => kindOf(event).lane },
      { name: "name", text: (event) => kindOf(event).name },
      { name: "label", text: (event) => kindOf(event).label ?? "" },
      { name: "start", isNumber: true, text: time("start") },
      { name: "end", isNumber: true, text: time("end") },
      {
        name: "sent",
        isNumber: true,
        text: (event) => (kindOf(event).lane === "communication" ? bytesText(rankOf()!.events.sent[event]!) : ""),
      },
    ],
    () => {
      const events = rankOf()?.events;
      const from = Math.max(0, selection()?.event ?? 0);
      return Array.from({ length: Math.max(0, (events?.count ?? 0) - from) }, (_, i) => from + i);
    },
  );
}
