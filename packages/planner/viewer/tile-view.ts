import { contrastColor, paletteColor } from "../src/draw/color-scheme.ts";
import type { Band, TileData } from "../src/view/data.ts";
import { onThemeChange, parseColor, readTheme, type Rgb } from "./colors.ts";
import { decodeTiles, type Layer } from "./tile-layers.ts";
import { createButton, createElement, wrapInLabel, createSection, createTable } from "./elements.ts";

const MAP_SIZE_PIXELS = 560;
const FRAME_MS = 500;
/** Opacity of tiles of earlier steps. */
const PAST_STEP_OPACITY = 0.45;

/** Creates the section on which rank computes which tile, step by step. */
export function createTileSection(tiles: TileData): HTMLElement {
  const layers = decodeTiles(tiles);
  const canvas = createElement("canvas", {
    class: "tiles",
    role: "img",
    width: `${MAP_SIZE_PIXELS}`,
    height: `${MAP_SIZE_PIXELS}`,
  });
  const output = createElement("output", { "aria-live": "polite" });
  const lastStep = Math.max(0, tiles.steps - 1);
  const slider = createElement("input", {
    type: "range",
    min: "0",
    max: `${lastStep}`,
    value: `${lastStep}`,
    "aria-label": "Step",
  });
  const rankInput = createElement("input", {
    type: "number",
    min: "0",
    placeholder: "all",
    inputmode: "numeric",
    size: "6",
  });
  const draw = (): void => {
    const step = slider.valueAsNumber;
    const tileCounts = drawTiles(canvas, tiles, layers, {
      step,
      selectedRank: rankInput.value === "" ? undefined : rankInput.valueAsNumber,
    });
    const summary = `Step ${step + 1} of ${lastStep + 1}: ${tileCounts.numStepTiles} ${tileCounts.numStepTiles === 1 ? "tile" : "tiles"} computed in this step, ${tileCounts.numTilesUntilStep} of ${tileCounts.numTotalTiles} so far.`;
    output.value = summary;
    slider.setAttribute("aria-valuetext", summary);
    canvas.setAttribute(
      "aria-label",
      `Map of tiles, colored by rank: queries from top to bottom, keys from left to right. ${summary}`,
    );
  };
  const playButton = createPlayButton(slider, draw);
  slider.addEventListener("input", draw);
  rankInput.addEventListener("input", draw);
  onThemeChange(draw);
  draw();
  const controls = createElement(
    "div",
    { class: "controls" },
    playButton,
    wrapInLabel("Step", slider),
    wrapInLabel("Only rank", rankInput),
  );
  return createSection(
    "tiles",
    "Tiles",
    createElement(
      "p",
      {},
      "Tiles of the forward pass, colored by rank: queries are rows, keys are columns. Tiles of earlier steps are faded. Empty tiles are masked or not yet computed.",
    ),
    controls,
    createElement("div", { class: "square" }, canvas),
    output,
    createTileTable(tiles, layers),
  );
}

/** Creates a button that plays the steps, two per second. If reduced motion is preferred, each press is one step. */
function createPlayButton(slider: HTMLInputElement, draw: () => void): HTMLButtonElement {
  let timer: ReturnType<typeof setInterval> | undefined;
  const prefersReducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const stop = (): void => {
    clearInterval(timer);
    timer = undefined;
    playButton.textContent = prefersReducedMotion ? "Next step" : "Play";
  };
  const advance = (): void => {
    const lastStep = Number(slider.max);
    slider.valueAsNumber = slider.valueAsNumber >= lastStep ? 0 : slider.valueAsNumber + 1;
    if (slider.valueAsNumber >= lastStep) stop();
    draw();
  };
  const playButton = createButton("", "Step through the tiles", () => {
    if (timer !== undefined) return stop();
    if (prefersReducedMotion) return advance();
    playButton.textContent = "Pause";
    timer = setInterval(advance, FRAME_MS);
    advance();
  });
  stop();
  return playButton;
}

interface TileSelection {
  readonly step: number;
  readonly selectedRank: number | undefined;
}

/**
 * Draws each cell in proportion to the length of its bands. Returns the number of tiles in this step, until this step,
 * and in all.
 */
function drawTiles(
  canvas: HTMLCanvasElement,
  { queries, keys }: TileData,
  layers: readonly Layer[],
  { step, selectedRank }: TileSelection,
): { numStepTiles: number; numTilesUntilStep: number; numTotalTiles: number } {
  const context = canvas.getContext("2d")!;
  const theme = readTheme();
  const track = parseColor(theme.track);
  const [rows, columns] = [bandEdges(queries), bandEdges(keys)];
  const counts = { numStepTiles: 0, numTilesUntilStep: 0, numTotalTiles: 0 };
  context.fillStyle = theme.track;
  context.fillRect(0, 0, MAP_SIZE_PIXELS, MAP_SIZE_PIXELS);
  for (let row = 0; row < queries.length; row++) {
    for (let column = 0; column < keys.length; column++) {
      const cell = row * keys.length + column;
      const shownLayers = layers.filter(
        ({ rank }) => rank[cell]! >= 0 && (selectedRank === undefined || rank[cell] === selectedRank),
      );
      const computedLayers = shownLayers.filter((layer) => layer.step[cell]! <= step);
      counts.numTotalTiles += shownLayers.length;
      counts.numTilesUntilStep += computedLayers.length;
      for (const [i, layer] of computedLayers.entries()) {
        const isInStep = layer.step[cell] === step;
        if (isInStep) counts.numStepTiles++;
        const [top, height] = [rows[row]!, (rows[row + 1]! - rows[row]!) / shownLayers.length];
        context.fillStyle = mixColors(
          parseColor(paletteColor(layer.rank[cell]!)),
          track,
          isInStep ? 1 : PAST_STEP_OPACITY,
        );
        const box = {
          x: columns[column]!,
          y: top + i * height,
          width: columns[column + 1]! - columns[column]!,
          height,
        };
        context.fillRect(box.x, box.y, box.width, box.height);
        if (isInStep) drawNumber(context, box, layer.rank[cell]!);
      }
    }
  }
  return counts;
}

/** Draws the rank if there is room for it. */
function drawNumber(
  context: CanvasRenderingContext2D,
  { x, y, width, height }: Readonly<Record<"x" | "y" | "width" | "height", number>>,
  rank: number,
): void {
  const size = Math.min(16, height * 0.6);
  if (size < 8 || width < 1.6 * size) return;
  context.fillStyle = contrastColor(paletteColor(rank));
  context.font = `${size}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(`${rank}`, x + width / 2, y + height / 2);
}

function bandEdges(bands: readonly Band[]): readonly number[] {
  const totalLength = bands.reduce((sum, { length }) => sum + length, 0) || 1;
  let position = 0;
  return [0, ...bands.map(({ length }) => Math.round(((position += length) / totalLength) * MAP_SIZE_PIXELS))];
}

function mixColors(color: Rgb, background: Rgb, opacity: number): string {
  const channels = color.map((channel, i) => Math.round(255 * (channel * opacity + background[i]! * (1 - opacity))));
  return `rgb(${channels.join(" ")})`;
}

function createTileTable({ queries, keys }: TileData, layers: readonly Layer[]): HTMLDetailsElement {
  return createTable(
    "tiles by rank",
    [
      { name: "rank", isNumber: true, text: ({ rank }) => `${rank}` },
      { name: "tiles", isNumber: true, text: ({ tiles }) => `${tiles}` },
      { name: "steps", isNumber: true, text: ({ steps }) => `${steps.size}` },
      { name: "queries", text: ({ rows }) => formatBands(queries, rows) },
      { name: "keys", text: ({ columns }) => formatBands(keys, columns) },
    ],
    () => countTilesByRank(layers, keys.length),
  );
}

interface RankTiles {
  readonly rank: number;
  tiles: number;
  readonly steps: Set<number>;
  readonly rows: Set<number>;
  readonly columns: Set<number>;
}

function countTilesByRank(layers: readonly Layer[], width: number): readonly RankTiles[] {
  const ranks = new Map<number, RankTiles>();
  for (const { rank, step } of layers) {
    for (const [cell, tileRank] of rank.entries()) {
      if (tileRank < 0) continue;
      let rankCounts = ranks.get(tileRank);
      if (!rankCounts)
        ranks.set(
          tileRank,
          (rankCounts = { rank: tileRank, tiles: 0, steps: new Set(), rows: new Set(), columns: new Set() }),
        );
      rankCounts.tiles++;
      rankCounts.steps.add(step[cell]!);
      rankCounts.rows.add(Math.floor(cell / width));
      rankCounts.columns.add(cell % width);
    }
  }
  return [...ranks.values()].toSorted((a, b) => a.rank - b.rank);
}

/** Formats positions as ranges; of many ranges, only the first and the last. */
function formatBands(bands: readonly Band[], bandNumbers: ReadonlySet<number>): string {
  const ranges: { start: number; last: number }[] = [];
  for (const band of [...bandNumbers].toSorted((a, b) => a - b)) {
    const { start, last } = bands[band]!;
    const lastRange = ranges.at(-1);
    if (lastRange && start <= lastRange.last + 1) lastRange.last = Math.max(lastRange.last, last);
    else ranges.push({ start, last });
  }
  const texts = ranges.map(({ start, last }) => `${start}–${last}`);
  return texts.length > 4 ? `${texts[0]}, …, ${texts.at(-1)} (${texts.length} ranges)` : texts.join(", ");
}
