import uPlot from "uplot";
import { bytesText, secondsText } from "../src/draw/quantity.ts";
import type { Styles } from "./colors.ts";
import { criticalPath, type EventReference } from "./critical-path.ts";
import { createElement } from "./elements.ts";
import { addPointerGestures, addWheelGestures } from "./gestures.ts";
import { type Kinds, lowerBound, type Run } from "./model.ts";
import { createAxis, createPlot, createTimeAxis } from "./plot.ts";
import { layoutLanes, layoutSceneRows, TimelinePainter } from "./timeline-painter.ts";
import { type Extent, pan, reveal, type Viewport, wholeViewport, zoom } from "./viewport.ts";

export type SelectedEvent = EventReference & { readonly run: number };

/** Notifications from the timeline to the page. */
export interface TimelineListener {
  onSelect(selectedEvent: SelectedEvent | undefined): void;
  onViewChange(view: Viewport): void;
}

/** A canvas with ranks over time, controlled by pointer, wheel and keys. */
export class TimelineView {
  readonly canvas: HTMLDivElement;
  readonly #runs: readonly Run[];
  readonly #kinds: Kinds;
  readonly #styles: Styles;
  readonly #extent: Extent;
  readonly #listener: TimelineListener;
  readonly #plot: uPlot;
  readonly #painter = new TimelinePainter();
  #shownRuns: readonly number[];
  #isKindShown: Uint8Array;
  #view: Viewport;
  #selectedEvent: SelectedEvent | undefined;
  #isPathShown = false;
  #criticalPaths: readonly (readonly EventReference[])[] | undefined;

  constructor(
    parent: HTMLElement,
    { runs, kinds, styles }: { runs: readonly Run[]; kinds: Kinds; styles: Styles },
    listener: TimelineListener,
  ) {
    this.#runs = runs;
    this.#kinds = kinds;
    this.#styles = styles;
    this.#listener = listener;
    this.#shownRuns = [...runs.keys()];
    this.#isKindShown = new Uint8Array(kinds.allKinds.length).fill(1);
    const ranks = Math.max(1, ...runs.map((run) => run.ranks.length));
    this.#extent = { seconds: Math.max(1e-9, ...runs.map(({ seconds }) => seconds)), ranks };
    this.#view = wholeViewport(this.#extent);
    this.canvas = createElement("div", {
      class: "canvas",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "timeline",
      "aria-label": this.#describeRuns(),
      "aria-describedby": "timeline-keys",
    });
    parent.append(this.canvas);
    const height = Math.round(Math.min(560, Math.max(170, 60 + ranks * runs.length * 40)));
    this.#plot = createPlot(
      this.#plotOptions(height),
      [
        [0, 1],
        [null, null],
      ] as unknown as uPlot.AlignedData,
      this.canvas,
    );
    this.#addListeners();
  }

  get view(): Viewport {
    return this.#view;
  }

  show(view: Viewport): void {
    this.#view = view;
    // Sets both scales at once, so that the plot is drawn once.
    this.#plot.batch(() => {
      this.#plot.setScale("x", { min: view.start, max: view.end });
      this.#plot.setScale("y", { min: view.first, max: view.last });
    });
    this.#listener.onViewChange(view);
  }

  showAll(): void {
    this.show(wholeViewport(this.#extent));
  }

  /** Selects the runs and the kinds of events that are shown. */
  filter(runs: readonly number[], isKindShown: Uint8Array): void {
    this.#shownRuns = runs;
    this.#isKindShown = isKindShown;
    this.#plot.redraw();
  }

  showCriticalPath(isShown: boolean): readonly (readonly EventReference[])[] {
    this.#isPathShown = isShown;
    this.#criticalPaths ??= this.#runs.map((run) => criticalPath(run, this.#kinds));
    this.#plot.redraw();
    return this.#criticalPaths;
  }

  select(selectedEvent: SelectedEvent | undefined): void {
    this.#selectedEvent = selectedEvent;
    if (selectedEvent) {
      const { events } = this.#runs[selectedEvent.run]!.ranks[selectedEvent.rank]!;
      const [start, end] = [events.start[selectedEvent.event]!, events.end[selectedEvent.event]!];
      const view = reveal(this.#view, this.#extent, { start, end, rank: selectedEvent.rank });
      if (view.start !== this.#view.start || view.first !== this.#view.first) this.show(view);
    }
    this.#plot.redraw();
    this.#listener.onSelect(selectedEvent);
  }

  /** Zooms in time by a factor about the middle. */
  zoomTime(factor: number): void {
    this.show(zoom(this.#view, this.#extent, { time: factor, center: [0.5, 0.5] }));
  }

  zoomRanks(factor: number): void {
    this.show(zoom(this.#view, this.#extent, { ranks: factor, center: [0.5, 0] }));
  }

  #describeRuns(): string {
    const runs = this.#runs.map(({ name, ranks, seconds, events }) => {
      return `${name === "" ? "" : `${name}: `}${ranks.length} ranks, ${events} events, ${secondsText(seconds)}`;
    });
    return `Timeline of ${runs.join("; ")}`;
  }

  #plotOptions(height: number): Omit<uPlot.Options, "width"> {
    return {
      height,
      padding: [6, 12, 0, 0],
      cursor: { drag: { x: false, y: false }, y: false, points: { show: false } },
      scales: {
        x: { time: false, auto: false, min: 0, max: this.#extent.seconds },
        // Rank 0 is at the top.
        y: { auto: false, min: 0, max: this.#extent.ranks, dir: -1 },
      },
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      axes: [{ ...createTimeAxis(), grid: { show: false } }, this.#rankAxis()],
      hooks: { drawClear: [(plot) => this.#paint(plot)] },
    };
  }

  /** Creates an axis with the numbers of ranks, at the middles of their rows. */
  #rankAxis(): uPlot.Axis {
    return createAxis({
      size: 64,
      grid: { show: false },
      ticks: { show: false },
      splits: (plot) => {
        const { first, last } = this.#view;
        const maxTicks = Math.max(1, Math.floor(plot.bbox.height / devicePixelRatio / 18));
        const step = Math.max(1, 2 ** Math.ceil(Math.log2((last - first) / maxTicks)));
        const firstTick = Math.ceil((first - 0.5) / step) * step;
        const count = Math.max(0, Math.ceil((last - 0.5 - firstTick) / step));
        return Array.from({ length: count }, (_, i) => firstTick + i * step + 0.5);
      },
      values: (_, splits) => splits.map((at) => `rank ${this.#rankAt(Math.floor(at))}`),
    });
  }

  #rankAt(index: number): number {
    return (this.#runs.find(({ ranks }) => ranks[index])?.ranks[index] ?? { rank: index }).rank;
  }

  #paint(plot: uPlot): void {
    this.#painter.paint(plot, {
      runs: this.#shownRuns.map((run) => this.#runs[run]!),
      kinds: this.#kinds,
      styles: this.#styles,
      view: this.#view,
      isKindShown: this.#isKindShown,
      paths: this.#isPathShown ? this.#shownRuns.map((run) => this.#criticalPaths![run]!) : [],
      selectedEvent: this.#selectedEvent && {
        ...this.#selectedEvent,
        run: this.#shownRuns.indexOf(this.#selectedEvent.run),
      },
    });
  }

  #addListeners(): void {
    const { over } = this.#plot;
    const changeView = (update: (view: Viewport, extent: Extent) => Viewport): void =>
      this.show(update(this.#view, this.#extent));
    addPointerGestures(over, {
      onPan: (shares) => changeView((view, extent) => pan(view, extent, shares)),
      onPinch: (factor, at) => changeView((view, extent) => zoom(view, extent, { time: factor, center: at })),
      onTap: (at) => this.select(this.#findEvent(at)),
    });
    addWheelGestures(over, {
      onPan: (shares) => changeView((view, extent) => pan(view, extent, shares)),
      onZoom: (factor, at) => changeView((view, extent) => zoom(view, extent, { time: factor, center: at })),
      onZoomRanks: (factor, at) => changeView((view, extent) => zoom(view, extent, { ranks: factor, center: at })),
    });
    over.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !this.#onKey(event.key)) return;
      event.preventDefault();
    });
  }

  #hover(event: PointerEvent): void {
    const { over } = this.#plot;
    const hoveredEvent =
      event.buttons === 0
        ? this.#findEvent([event.offsetX / over.clientWidth, event.offsetY / over.clientHeight])
        : undefined;
    over.title = hoveredEvent ? this.describeEvent(hoveredEvent) : "";
  }

  /** Runs the action of a key. Returns false if there is none. */
  #onKey(key: string): boolean {
    const keys: Readonly<Record<string, () => void>> = {
      ArrowLeft: () => this.show(pan(this.#view, this.#extent, [-0.1, 0])),
      ArrowRight: () => this.show(pan(this.#view, this.#extent, [0.1, 0])),
      ArrowUp: () => this.show(pan(this.#view, this.#extent, [0, -0.1])),
      ArrowDown: () => this.show(pan(this.#view, this.#extent, [0, 0.1])),
      "+": () => this.zoomTime(0.5),
      "=": () => this.zoomTime(0.5),
      "-": () => this.zoomTime(2),
      "[": () => this.zoomRanks(2),
      "]": () => this.zoomRanks(0.5),
      Home: () => this.showAll(),
      "0": () => this.showAll(),
      Escape: () => this.select(undefined),
      n: () => this.#selectNeighbor(1),
      p: () => this.#selectNeighbor(-1),
      j: () => this.#changeRank(1),
      k: () => this.#changeRank(-1),
    };
    keys[key]?.();
    return key in keys;
  }

  /** Selects the next event of the rank, or the first visible one. */
  #selectNeighbor(step: 1 | -1): void {
    const origin = this.#selectedEvent ?? {
      run: this.#shownRuns[0] ?? 0,
      rank: Math.floor(this.#view.first),
      event: -1,
    };
    const events = this.#runs[origin.run]?.ranks[origin.rank]?.events;
    if (!events || events.count === 0) return;
    let event = origin.event < 0 ? lowerBound(events.start, this.#view.start) : origin.event + step;
    while (event >= 0 && event < events.count && this.#isKindShown[events.kind[event]!] === 0) event += step;
    if (event >= 0 && event < events.count) this.select({ ...origin, event });
  }

  /** Selects what another rank does at the same time. */
  #changeRank(step: 1 | -1): void {
    if (!this.#selectedEvent) return this.#selectNeighbor(1);
    const { run, rank, event } = this.#selectedEvent;
    const { ranks } = this.#runs[run]!;
    const nextRank = Math.min(ranks.length - 1, Math.max(0, rank + step));
    const { events } = ranks[nextRank]!;
    const firstEventAtOrAfter = lowerBound(events.start, ranks[rank]!.events.start[event]!);
    if (events.count > 0) this.select({ run, rank: nextRank, event: Math.min(events.count - 1, firstEventAtOrAfter) });
  }

  #findEvent([xShare, yShare]: readonly [number, number]): SelectedEvent | undefined {
    const { height } = this.#plot.bbox;
    const y = yShare * height;
    const runs = this.#shownRuns.map((run) => this.#runs[run]!);
    const row = layoutSceneRows({ view: this.#view, runs }, height, devicePixelRatio).find(
      ({ top, height: rowHeight }) => y >= top && y < top + rowHeight,
    );
    if (!row) return undefined;
    const { compute, communication } = layoutLanes(row, devicePixelRatio);
    const hitLanes =
      compute[0] === communication[0]
        ? ["compute", "communication"]
        : [y < communication[0] ? "compute" : "communication"];
    const time = this.#view.start + xShare * (this.#view.end - this.#view.start);
    // Tolerance of one pixel on each side.
    const pixelSeconds = (this.#view.end - this.#view.start) / this.#plot.bbox.width;
    const ranks = runs[row.run]!.ranks;
    for (let rank = row.firstRank; rank < Math.min(row.endRank, ranks.length); rank++) {
      const { events } = ranks[rank]!;
      for (let event = lowerBound(events.start, time + pixelSeconds) - 1; event >= 0; event--) {
        if (events.start[event]! < time - pixelSeconds - events.longestSeconds) break;
        const kind = events.kind[event]!;
        const isInEvent =
          events.end[event]! >= time - pixelSeconds &&
          hitLanes.includes(this.#kinds.allKinds[kind]!.lane) &&
          this.#isKindShown[kind] === 1;
        if (isInEvent) return { run: this.#shownRuns[row.run]!, rank, event };
      }
    }
    return undefined;
  }

  /** Describes an event. */
  describeEvent({ run, rank, event }: SelectedEvent): string {
    const { name: runName, ranks } = this.#runs[run]!;
    const { events, rank: rankNumber, at } = ranks[rank]!;
    const { lane, name, label } = this.#kinds.allKinds[events.kind[event]!]!;
    const [start, end] = [events.start[event]!, events.end[event]!];
    const coordinates = Object.entries(at).map(([axis, index]) => `${axis} ${index}`);
    const mergedText = events.merged[event]! > 1 ? ` and others, ${events.merged[event]} merged events` : "";
    const transferText =
      lane === "communication"
        ? `; sent ${bytesText(events.sent[event]!)}, received ${bytesText(events.received[event]!)}`
        : "";
    return [
      `${runName === "" ? "" : `${runName}, `}rank ${rankNumber}${coordinates.length > 0 ? ` (${coordinates.join(", ")})` : ""}: ${label ?? name}${mergedText}`,
      `${secondsText(start)} to ${secondsText(end)}, ${secondsText(end - start)}${transferText}`,
    ].join("; ");
  }
}
