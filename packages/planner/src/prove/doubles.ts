import type { Span } from "@mosaic/core";
import { commonPositions } from "./area.ts";
import type { Side, Tile } from "./values.ts";

interface Held {
  readonly span: Span;
  readonly end: number;
  readonly tile: Tile;
}

/**
 * The first two tiles that share positions on the other side than `side` and `collide` there, if any. Spans of one step
 * are compared within their remainder, from left to right; those of different steps one by one, for they are few.
 */
export function findDoubles(
  tiles: readonly Tile[],
  side: Side,
  collide: (a: Tile, b: Tile) => boolean,
): readonly [Tile, Tile] | undefined {
  const classes = new Map<string, Held[]>();
  for (const tile of tiles) {
    for (const span of side === "queries" ? tile.k : tile.q) {
      const name = `${span.step},${span.start % span.step}`;
      const held = { span, end: span.start + (span.length - 1) * span.step + 1, tile };
      const list = classes.get(name);
      if (list) list.push(held);
      else classes.set(name, [held]);
    }
  }
  for (const list of classes.values()) {
    const double = sweep(list, collide);
    if (double) return double;
  }
  const steps = new Set([...classes.keys()].map((name) => name.split(",")[0]));
  return steps.size > 1 ? across([...classes.values()].flat(), collide) : undefined;
}

function sweep(list: readonly Held[], collide: (a: Tile, b: Tile) => boolean): readonly [Tile, Tile] | undefined {
  let open: Held[] = [];
  for (const held of list.toSorted((a, b) => a.span.start - b.span.start)) {
    open = open.filter(({ end }) => end > held.span.start);
    const double = open.find(({ tile }) => collide(tile, held.tile));
    if (double) return [double.tile, held.tile];
    open.push(held);
  }
  return undefined;
}

function across(all: readonly Held[], collide: (a: Tile, b: Tile) => boolean): readonly [Tile, Tile] | undefined {
  for (const [i, a] of all.entries()) {
    for (const b of all.slice(i + 1)) {
      if (a.span.step === b.span.step || !commonPositions(a.span, b.span)) continue;
      if (collide(a.tile, b.tile)) return [a.tile, b.tile];
    }
  }
  return undefined;
}
