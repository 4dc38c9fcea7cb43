import { positions, type Span } from "@mosaic/core";
import { expect, test } from "vitest";
import { createBox } from "../src/prove/box.ts";
import { Region, toContent } from "../src/prove/content.ts";
import { reduceMessages } from "../src/prove/entries.ts";
import { PositionTable } from "../src/prove/positions.ts";
import { EMPTY_SUM, SumTable } from "../src/prove/sums.ts";
import { decodePayload, encodeValue, InitialValues } from "../src/prove/values.ts";
import { InternPool } from "../src/symbolic/intern-pool.ts";
import { identityTranslations } from "../src/symmetry/translations.ts";

const [ROWS, HEADS, COLUMNS] = [8, 2, 3];
const ROW_ELEMENTS = HEADS * COLUMNS;

/** Rows [first, end) of a message, which have the positions from `start` on and are the gradient of one tile. */
interface Part {
  readonly first: number;
  readonly end: number;
  readonly start: number;
  readonly tile: number;
}

class MessageSums {
  readonly #interned = new InternPool();
  readonly #positions = new PositionTable(this.#interned);
  readonly #sums = new SumTable(identityTranslations({ sp: 1 }));

  #createRegion({ first, end, start, tile }: Part): Region {
    const span: Span = { start, length: end - first, step: 1 };
    const rows = { batch: 0, head: 0, column: 0, positions: this.#positions.fromSpans([span]) };
    const box = createBox(first * ROW_ELEMENTS, [1, HEADS, end - first, COLUMNS], [0, COLUMNS, ROW_ELEMENTS, 1]);
    return new Region(encodeValue("dk", this.#sums.add(EMPTY_SUM, tile)), rows, box);
  }

  /** Returns, for each known row of the sum, its position and the tiles that were added, in order. */
  reduce(messages: readonly (readonly Part[])[]): string[] {
    const contents = messages.map((parts) => toContent(parts.map((part) => this.#createRegion(part))));
    const context = { sums: this.#sums, initialValues: new InitialValues(this.#interned) };
    const rows: string[] = [];
    for (const { value, rows: regionRows, box } of reduceMessages(contents, context).regions) {
      const tiles = this.#sums.listTiles(decodePayload(value)).join("+");
      for (const [i, position] of positions(regionRows.positions.spans).entries())
        rows[box.low / ROW_ELEMENTS + i] = `${position}: ${tiles}`;
    }
    return Array.from(rows, (row) => row ?? "unknown");
  }
}

/** Returns parts that cover all rows, cut at some of them. */
function cutRows(cuts: readonly number[], firstTile: number, start = 100): Part[] {
  const bounds = [0, ...cuts, ROWS];
  return bounds.slice(1).map((end, i) => {
    const first = bounds[i]!;
    return { first, end, start: start + first, tile: firstTile + i };
  });
}

test.each([
  { cuts: [[], []] },
  { cuts: [[7], []] },
  { cuts: [[], [3]] },
  { cuts: [[3], [3]] },
  { cuts: [[2, 5], [3, 5, 7], [1]] },
])("reduceMessages adds messages whose rows are split at $cuts row by row", ({ cuts }) => {
  const messages = cuts.map((each, message) => cutRows(each, 10 * message));
  const expected = Array.from({ length: ROWS }, (_, row) => {
    const tiles = messages.map((parts) => parts.find(({ first, end }) => first <= row && row < end)!.tile);
    return `${100 + row}: ${tiles.join("+")}`;
  });
  expect(new MessageSums().reduce(messages)).toEqual(expected);
});

test("reduceMessages omits rows that a message lacks, and rows whose positions differ are unknown", () => {
  const incomplete = cutRows([3], 0).slice(0, 1);
  expect(new MessageSums().reduce([incomplete, cutRows([1], 10)])).toEqual(["100: 0+10", "101: 0+11", "102: 0+11"]);
  const [shiftedPart, rest] = [cutRows([3], 0, 101)[0]!, cutRows([3], 0)[1]!];
  const rows = new MessageSums().reduce([[shiftedPart, rest], cutRows([], 10)]);
  expect(rows).toEqual(["unknown", "unknown", "unknown", ...[103, 104, 105, 106, 107].map((row) => `${row}: 1+10`)]);
});
