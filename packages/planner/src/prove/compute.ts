import type { Span } from "@mosaic/core";
import type { AttentionRecord, RecordedRank } from "../record.ts";
import type { Reader } from "../symbolic/tape.ts";
import { accumulated, type Expected, fits, isZero, nothing, pairsOf, positionsOf, sameRows } from "./accumulate.ts";
import { visiblePairs } from "./area.ts";
import type { Completeness } from "./complete.ts";
import type { Entry, Read } from "./content.ts";
import type { Fault, Faults } from "./fault.ts";
import type { RankMemory } from "./rank-memory.ts";
import { describe, positionsText, type SourceName, type Sum, type SumName, type Tile, tileText } from "./values.ts";

/** Replays what the kernels of one rank do to what its memory holds. */
export class Compute {
  readonly #record: AttentionRecord;
  readonly #rank: number;
  readonly #memory: RankMemory;
  readonly #complete: Completeness;
  readonly #faults: Faults;
  readonly #group: number;
  readonly #partials = new Set<Sum>();
  #phase = "";
  #tiles = 0;

  constructor(record: AttentionRecord, { tape }: RecordedRank, means: Means) {
    this.#record = record;
    this.#rank = tape.rank;
    this.#memory = means.memory;
    this.#complete = means.complete;
    this.#faults = means.faults;
    this.#group = record.options.heads / record.options.kvHeads;
  }

  /** The phase, and how many tiles were computed in it. */
  get where(): string {
    return `${this.#phase}, after tile ${this.#tiles}`;
  }

  get phase(): string {
    return this.#phase;
  }

  begin(phase: string): void {
    this.#phase = phase;
    this.#tiles = 0;
  }

  attend(event: Reader): void {
    const [out, lse, q, k, v] = [event.arg(0), event.arg(1), event.arg(2), event.arg(3), event.arg(4)];
    const found = this.#tile(event, 5, { q, k });
    if (!found) return;
    const { tile, queries } = found;
    if (!this.#source(tile, "v", v, found.keys)) return;
    const add = adding(tile);
    this.#add(tile, out, { name: "out", expected: queries, add });
    this.#add(tile, lse, { name: "lse", expected: queries, add });
    this.#agree(tile, out, lse);
  }

  attendBackward(event: Reader): void {
    const at = (i: number): number => event.arg(i);
    const found = this.#tile(event, 9, { q: at(3), k: at(7) });
    if (!found) return;
    const { tile, queries, keys } = found;
    if (!this.#source(tile, "dOut", at(4), queries) || !this.#source(tile, "v", at(8), keys)) return;
    if (!this.#statistics(tile, queries, { lse: at(5), delta: at(6) })) return;
    const add = adding(tile);
    this.#add(tile, at(0), { name: "dq", expected: queries, add });
    this.#add(tile, at(1), { name: "dk", expected: keys, add });
    this.#add(tile, at(2), { name: "dv", expected: keys, add });
  }

  /** into ← into and from, which are out and lse of the same queries over other keys. */
  merge(event: Reader): void {
    const place = `rank ${this.#rank}, ${this.where}: merge`;
    const join = joining();
    for (const i of [0, 1]) {
      const entries = this.#joined(event.arg(i), event.arg(i + 2), join);
      if (entries) this.#memory.write(event.arg(i), entries);
      else this.#fault("data", `${place}: ${i === 0 ? "out" : "lse"} are not states of the same queries`);
    }
  }

  /** Sums of the same rows become one; of what else is added nothing is known after. */
  add(event: Reader): void {
    const [out, a, b] = [event.arg(0), event.arg(1), event.arg(2)];
    this.#memory.write(out, this.#joined(a, b, joining()) ?? []);
  }

  copy(event: Reader): void {
    const [out, x] = [event.arg(0), event.arg(1)];
    const { sizes } = this.#memory.view(out).look.box;
    const same = sizes.every((size, i) => size === this.#memory.view(x).look.box.sizes[i]);
    this.#memory.write(out, same ? this.#memory.read(x).entries : []);
  }

  fill(event: Reader): void {
    const out = event.arg(0);
    const { sizes } = this.#memory.view(out).look.box;
    const value = this.#record.names.words[event.arg(1)]!;
    const rows = { batch: 0, head: 0, start: 0, step: 1 };
    this.#memory.write(out, [{ value: { kind: "fill", value }, rows, at: [0, 0, 0, 0], sizes }]);
  }

  rowDot(event: Reader): void {
    const entries: Entry[] = [];
    for (const [a, b] of pairsOf(this.#memory.read(event.arg(1)), this.#memory.read(event.arg(2)))) {
      if (a.value.kind !== "source" || a.value.name !== "dOut") continue;
      const sum = b.value.kind === "sum" && b.value.name === "out" ? b.value.sum : undefined;
      if (isZero(b.value, "out")) entries.push({ ...b, sizes: b.sizes.with(3, 1) });
      else if (sum && sameRows(a, b)) entries.push({ ...b, value: { kind: "delta", sum }, sizes: b.sizes.with(3, 1) });
    }
    this.#memory.write(event.arg(0), entries);
  }

  /** The tile of a kernel call, if it computes anything, and has the queries and keys that it says. */
  #tile(event: Reader, first: number, views: { q: number; k: number }): FoundTile | undefined {
    const { names } = this.#record;
    const q = names.rows[event.arg(first)]!;
    const k = names.rows[event.arg(first + 1)]!;
    const mask = names.masks[event.arg(first + 2)]!;
    const place = { rank: this.#rank, phase: this.#phase, number: ++this.#tiles };
    const pairs = visiblePairs(q, k, mask);
    if (pairs === 0) return undefined;
    const bare = { q, k, mask, pairs, place };
    const queries = this.#source(bare, "q", views.q, { spans: q });
    const keys = this.#source(bare, "k", views.k, { spans: k });
    if (!queries || !keys) return undefined;
    const heads = this.#heads(queries, keys, views);
    if (heads) return { tile: { ...bare, heads }, queries, keys };
    this.#fault("data", `${tileText(bare)}: the query heads do not belong to the key heads`);
    return undefined;
  }

  /** Which query heads of its group each key head meets: a kernel gives every key head as many, in order. */
  #heads(queries: Expected, keys: Expected, { q, k }: { q: number; k: number }): Tile["heads"] | undefined {
    const [queryBox, keyBox] = [this.#memory.view(q).look.box, this.#memory.view(k).look.box];
    const [count, keyCount] = [queryBox.sizes[1]!, keyBox.sizes[1]!];
    const each = count / keyCount;
    const first = queries.head - keys.head * this.#group;
    const fit = keyCount === 1 ? first >= 0 && first + each <= this.#group : first === 0 && each === this.#group;
    return fit && queries.batch === keys.batch && queryBox.sizes[0] === keyBox.sizes[0]
      ? [first, first + each]
      : undefined;
  }

  /**
   * Checks that a view holds the rows of an input that the tile says, of whatever heads if none are asked for. Keys that
   * no query of the tile sees may be anything.
   */
  // oxlint-disable-next-line max-params -- whose, which, where, and what it should be
  #source(
    tile: Where,
    name: SourceName,
    view: number,
    expected: Pick<Expected, "spans"> & Partial<Expected>,
  ): Expected | undefined {
    const read = this.#memory.read(view);
    const { spans } = expected;
    if (read.memo?.name !== name || read.memo.spans !== spans)
      read.memo = { name, spans, answer: sourceOf(read, name, spans) };
    const found = read.memo.answer as Source | undefined;
    const heads =
      expected.head === undefined || (found?.rows.head === expected.head && found.rows.batch === expected.batch);
    const seen = (entry: Entry): boolean =>
      visiblePairs(tile.q, positionsOf(spans, entry.at[2]!, entry.sizes[2]!), tile.mask) > 0;
    const isKey = name === "k" || name === "v";
    if (found && heads && (found.odd.length === 0 || (isKey && !found.odd.some(seen)))) return found.rows;
    const held = [...new Set(read.entries.map(entryText))].join(", ") || "nothing that is known";
    this.#fault("data", `${tileText(tile)}: ${name} should hold rows ${positionsText(spans)}, but holds ${held}`);
    return undefined;
  }

  #add(tile: Tile, view: number, { name, expected, add }: Addition): void {
    const entries = accumulated(this.#memory.read(view), name, expected, add);
    if (typeof entries === "string") this.#fault("data", `${tileText(tile)}: ${entries}`);
    else this.#memory.write(view, entries);
  }

  /** out and lse must have seen the same keys. */
  #agree(tile: Tile, out: number, lse: number): void {
    for (const [a, b] of pairsOf(this.#memory.read(out), this.#memory.read(lse))) {
      if (a.value.kind === "sum" && b.value.kind === "sum" && a.value.sum === b.value.sum) continue;
      this.#fault("data", `${tileText(tile)}: out and lse have seen different keys`);
      return;
    }
  }

  /** lse must be that of all keys, and delta belong to it. */
  #statistics(tile: Tile, queries: Expected, views: { lse: number; delta: number }): boolean {
    const lse = this.#memory.read(views.lse);
    const delta = this.#memory.read(views.delta);
    let problem = lse.whole && delta.whole ? undefined : "lse or delta is not there throughout";
    for (const [a, b] of pairsOf(lse, delta)) {
      if (isZero(a.value, "lse") && isZero(b.value, "out")) {
        for (const rows of positionsOf(queries.spans, a.at[2]!, a.sizes[2]!)) {
          this.#partial(tile, nothing, rows);
        }
      } else if (a.value.kind !== "sum" || a.value.name !== "lse" || b.value.kind !== "delta") {
        problem ??= `lse holds ${describe(a.value)}, delta ${describe(b.value)}`;
      } else if (!fits(a, queries) || !fits(b, queries)) problem ??= "lse or delta is of other queries";
      else if (a.value.sum !== b.value.sum) problem ??= "delta is not of the output that lse belongs to";
      else {
        const rows = { start: a.rows.start, length: a.sizes[2]!, step: a.rows.step };
        this.#partial(tile, a.value.sum, rows);
      }
    }
    if (problem) this.#fault("data", `${tileText(tile)}: ${problem}`);
    return problem === undefined;
  }

  /** Reports, once, that an lse is used that is not of all keys; its backward may be right nonetheless. */
  #partial(tile: Tile, sum: Sum, rows: Span): void {
    const verdict = this.#complete.of(sum, "queries", rows);
    if (!verdict || this.#partials.has(sum)) return;
    this.#partials.add(sum);
    this.#fault(verdict.kind, `${tileText(tile)}, lse: ${verdict.message}`);
  }

  /** Both sums in one, box by box; undefined if they do not belong together. */
  #joined(a: number, b: number, join: (a: Sum, b: Sum) => Sum): readonly Entry[] | undefined {
    const [one, two] = [this.#memory.read(a), this.#memory.read(b)];
    if (!one.whole || !two.whole) return undefined;
    const entries: Entry[] = [];
    for (const [x, y] of pairsOf(one, two)) {
      const name = x.value.kind === "sum" ? x.value.name : y.value.kind === "sum" ? y.value.name : undefined;
      if (y.value.kind === "fill" && (!name || isZero(y.value, name))) entries.push(x);
      else if (name && isZero(x.value, name)) entries.push(y);
      else if (name && x.value.kind === "sum" && y.value.kind === "sum" && y.value.name === name && sameRows(x, y)) {
        entries.push({ ...x, value: { kind: "sum", name, sum: join(x.value.sum, y.value.sum) } });
      } else return undefined;
    }
    return entries;
  }

  #fault(kind: Fault["kind"], message: string): void {
    this.#faults.report({ kind, rank: this.#rank, message });
  }
}

export interface Means {
  readonly memory: RankMemory;
  readonly complete: Completeness;
  readonly faults: Faults;
}

type Where = Pick<Tile, "place" | "q" | "k" | "mask">;

/** Which rows of an input a view holds, and the entries that are something else. */
interface Source {
  readonly rows: Expected;
  readonly odd: readonly Entry[];
}

/** Undefined if no row of the input is there, or if something is not known at all. */
function sourceOf({ whole, entries }: Read, name: SourceName, spans: readonly Span[]): Source | undefined {
  const first = entries.find(({ value }) => value.kind === "source" && value.name === name);
  if (!whole || !first) return undefined;
  const rows = { spans, batch: first.rows.batch - first.at[0]!, head: first.rows.head - first.at[1]! };
  const good = (entry: Entry): boolean =>
    entry.value.kind === "source" && entry.value.name === name && fits(entry, rows);
  return { rows, odd: entries.filter((entry) => !good(entry)) };
}

interface FoundTile {
  readonly tile: Tile;
  readonly queries: Expected;
  readonly keys: Expected;
}

interface Addition {
  readonly name: SumName;
  readonly expected: Expected;
  readonly add: (sum: Sum) => Sum;
}

function entryText({ value, rows, sizes }: Entry): string {
  const span = { start: rows.start, length: sizes[2]!, step: rows.step };
  return value.kind === "fill" ? describe(value) : `${describe(value)} ${positionsText([span])}`;
}

/** Adds a tile to sums: equal sums stay equal, so that out and lse can be told to belong together. */
function adding(tile: Tile): (sum: Sum) => Sum {
  const made = new Map<Sum, Sum>();
  return (left) => {
    const known = made.get(left) ?? { left, tile };
    made.set(left, known);
    return known;
  };
}

/** The same for sums of sums. */
function joining(): (left: Sum, right: Sum) => Sum {
  const made = new Map<Sum, Map<Sum, Sum>>();
  return (left, right) => {
    const row = made.get(left) ?? new Map<Sum, Sum>();
    const known = row.get(right) ?? { left, right };
    made.set(left, row.set(right, known));
    return known;
  };
}
