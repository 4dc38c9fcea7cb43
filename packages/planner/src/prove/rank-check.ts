import { behaveAlike } from "../classes/behaviour.ts";
import type { Quotient } from "../classes/quotient.ts";
import type { RecordedRank } from "../record.ts";
import type { Reader } from "../symbolic/tape.ts";
import { Batch } from "./batch.ts";
import { isSame } from "./box.ts";
import { type Content, nothingHeld, type Piece } from "./content.ts";
import type { ReplayContext } from "./context.ts";
import { sameRows } from "./entries.ts";
import { exchange, memberOf } from "./exchange.ts";
import type { Journal } from "./journal.ts";
import { overlapsItself } from "./overlaps.ts";
import type { Positions } from "./positions.ts";
import { RankMemory } from "./rank-memory.ts";
import { givenMemory, Replay } from "./replay.ts";
import { checkResults } from "./results.ts";
import { type Addend, nothing } from "./sums.ts";
import { alike, isDelta, isSum, payloadOf, type Value } from "./values.ts";

/** A proof of representatives that has come to its end. */
export interface Solved {
  readonly context: ReplayContext;
  readonly quotient: Quotient;
  /** What they sent, and their memories by number. */
  readonly journal: Journal;
  readonly memories: readonly RankMemory[];
}

/**
 * Replays one more rank, alone, on what it receives if all ranks do what their representatives do, and checks that it does
 * so too: the same operations in the same order, and the same rows and sums, translated, in every message. If that holds of every
 * rank, what the representatives sent is what is sent, for then every message of the whole replay is, by induction on
 * their order, the one that was supposed. Its own faults are reported to the context. Returns what differs, if anything.
 */
export function checkRank(recorded: RecordedRank, solved: Solved): string | undefined {
  const { context, quotient } = solved;
  const { record } = context;
  const { rank } = recorded.tape;
  const representative = record.ranks[quotient.index(rank)]!;
  const comparison = { record, translations: quotient.classes, pairs: undefined };
  const where = `rank ${rank}`;
  const whose = `rank ${representative.tape.rank}, which stands for its class`;
  if (!behaveAlike(representative, recorded, comparison)) return `${where} does other than ${whose}`;
  const memory = givenMemory(record, recorded, context.positions);
  const streams = new SuppliedStreams(recorded, memory, solved);
  const replay = new Replay(context, recorded, { index: 0, memory, streams });
  replay.run();
  if (streams.difference) return `${where}, ${streams.difference}: it sends other rows than ${whose}`;
  if (!replay.ended) return `${where} does not come to its end, as ${whose} does`;
  checkResults(context, recorded, memory);
  return undefined;
}

/** The communication of a rank whose peers are not there: what it posts is done at once. */
class SuppliedStreams {
  /** Where it first sent something else than was supposed. */
  difference: string | undefined;
  readonly #recorded: RecordedRank;
  readonly #memory: RankMemory;
  readonly #solved: Solved;
  readonly #comparison: ContentComparison;
  /** How many messages went each way so far, by family and peer. */
  readonly #counts = { sent: new Map<number, number>(), received: new Map<number, number>() };

  constructor(recorded: RecordedRank, memory: RankMemory, solved: Solved) {
    this.#recorded = recorded;
    this.#memory = memory;
    this.#solved = solved;
    this.#comparison = new ContentComparison(solved.context);
  }

  post(_: number, event: Reader, phase: string): void {
    const { quotient, context } = this.#solved;
    const { rank } = this.#recorded.tape;
    const batch = new Batch(rank, quotient.index(rank), event, phase);
    this.#memory.hold(batch);
    const place = batch.op === "sendRecv" ? -1 : quotient.place(batch.group, rank);
    if (overlapsItself(batch, this.#memory, place)) {
      const message = `rank ${rank}, ${phase}: a collective writes where it also reads, or twice to one place`;
      context.faults.report({ kind: "race", rank, message });
    }
    if (batch.op === "sendRecv") this.#transfer(batch);
    else this.#meet(batch);
    batch.isDone = true;
  }

  #transfer(batch: Batch): void {
    const { quotient, context, journal } = this.#solved;
    const { rank } = batch;
    const family = quotient.family(batch.group);
    const { classes } = quotient;
    for (let i = 0; i < batch.uses; i++) {
      if (!batch.sends(i)) continue;
      const ends = { from: rank, to: batch.peer(i) };
      const supposed = journal.sent(family, ends)[this.#count("sent", family, ends.to)];
      const moved = supposed && context.relabelling.content(supposed, classes.to(rank));
      this.#compare(batch, this.#memory.message(batch.view(i)), moved);
    }
    for (let i = 0; i < batch.uses; i++) {
      if (batch.sends(i)) continue;
      const ends = { from: batch.peer(i), to: rank };
      const message = journal.sent(family, ends)[this.#count("received", family, ends.from)] ?? nothingHeld;
      this.#memory.receive(batch.view(i), context.relabelling.content(message, classes.to(ends.from)));
    }
  }

  #count(way: "sent" | "received", family: number, peer: number): number {
    const counts = this.#counts[way];
    const key = family * this.#solved.quotient.size + peer;
    const count = counts.get(key) ?? 0;
    counts.set(key, count + 1);
    return count;
  }

  /** All others bring what their representatives brought. */
  #meet(batch: Batch): void {
    const { quotient, context, journal, memories } = this.#solved;
    const { group, call, rank } = batch;
    const { ranks } = context.record.groups[group]!;
    const me = quotient.place(group, rank);
    const own = batch.input < 0 ? nothingHeld : this.#memory.message(batch.input);
    const members = ranks.map((other) => {
      const joined = journal.joined(other, group, call)!;
      return memberOf(quotient, other, group, { ...joined, memory: memories[joined.batch.index]! });
    });
    // What it brings for each member is compared with what its representative brings for the one in that place.
    const supposed = members[me]!;
    for (const [from, end, start] of sharesOf(batch, supposed.batch, ranks.length, (i) => supposed.place(i))) {
      const moved = context.relabelling.content(supposed.input.range(from, end), supposed.translation);
      this.#compare(batch, own.range(start, start + end - from), moved);
    }
    const here = { batch, memory: this.#memory, input: own, translation: 0 };
    members[me] = { ...here, place: (i) => i, at: (i) => i };
    exchange({ members, receivers: [me] }, context);
  }

  #compare(batch: Batch, content: Content, supposed: Content | undefined): void {
    if (this.difference !== undefined || (supposed && this.#comparison.same(content, supposed))) return;
    this.difference = `${batch.phase}, ${this.#solved.context.record.names.words[batch.label]} #${batch.work}`;
  }
}

/** The stretches that a collective's input has for its members: from and end in the representative's, and start in the rank's own. */
// oxlint-disable-next-line max-params -- two inputs, and which member is which
function* sharesOf(
  own: Batch,
  supposed: Batch,
  size: number,
  place: (i: number) => number,
): Generator<readonly [number, number, number], void, undefined> {
  if (own.op !== "allToAll" && own.op !== "reduceScatter") {
    yield [0, Number.POSITIVE_INFINITY, 0];
    return;
  }
  const begins = new Float64Array(size + 1);
  for (let i = 0; i < size; i++) begins[i + 1] = begins[i]! + supposed.counts[i]!;
  let start = 0;
  for (let i = 0; i < size; i++) {
    const at = place(i);
    yield [begins[at]!, begins[at + 1]!, start];
    start += own.counts[i]!;
  }
}

/** Numbers of tiles that may be looked at where sums are not alike at first sight. */
const MOST_TILES = 2 ** 24;

/** Whether memory holds the same, though its sums were made in other ways: of the same tiles, whatever their order. */
class ContentComparison {
  readonly #context: ReplayContext;
  /** Lists of positions by number, sorted: tiles may have theirs in any order. */
  readonly #sorted = new Map<Positions, number>();
  #left = MOST_TILES;

  constructor(context: ReplayContext) {
    this.#context = context;
  }

  same(a: Content, b: Content): boolean {
    if (a === b) return true;
    if (a.pieces.length !== b.pieces.length) return false;
    if (a.pieces.length === 1) return this.#samePiece(a.pieces[0]!, b.pieces[0]!);
    const [one, two] = [inOrder(a.pieces), inOrder(b.pieces)];
    return one.every((piece, i) => this.#samePiece(piece, two[i]!));
  }

  #samePiece(a: Piece, b: Piece): boolean {
    return isSame(a.box, b.box) && this.#sameValue(a.value, b.value) && (a.rows === b.rows || sameRows(a.rows, b.rows));
  }

  #sameValue(a: Value, b: Value): boolean {
    if (a === b) return true;
    if (!alike(a, b) || !(isSum(a) || isDelta(a))) return false;
    return this.#sameSum(payloadOf(a), payloadOf(b));
  }

  /** Most sums are one tile after another, of which all but a few are one sum, translated. */
  #sameSum(a: number, b: number): boolean {
    const { sums, relabelling } = this.#context;
    const { translations } = relabelling;
    const open = [{ a, b, ta: 0, tb: 0 }];
    for (let next = open.pop(); next !== undefined; next = open.pop()) {
      const [one, two] = [sums.origin(next.a), sums.origin(next.b)];
      const ta = translations.apply(next.ta, one.translation);
      const tb = translations.apply(next.tb, two.translation);
      if (one.sum === two.sum && (ta === tb || one.sum === nothing)) continue;
      const [x, y] = [sums.lastOf(one.sum), sums.lastOf(two.sum)];
      if (!x || !y || (x.tile === undefined) !== (y.tile === undefined)) return this.#sameTiles(a, b);
      if (x.tile !== undefined) {
        const same = this.#keyOf({ tile: x.tile, translation: ta }) === this.#keyOf({ tile: y.tile!, translation: tb });
        if (!same) return this.#sameTiles(a, b);
      } else open.push({ a: x.right!, b: y.right!, ta, tb });
      open.push({ a: x.left, b: y.left, ta, tb });
    }
    return true;
  }

  #sameTiles(a: number, b: number): boolean {
    const { sums } = this.#context;
    const [one, two] = [sums.addendsOf(a), sums.addendsOf(b)];
    this.#left -= one.length + two.length;
    if (one.length !== two.length || this.#left < 0) return false;
    const keys = (addends: readonly Addend[]): string[] => addends.map((addend) => this.#keyOf(addend)).toSorted();
    const others = keys(two);
    return keys(one).every((key, i) => key === others[i]);
  }

  #keyOf({ tile, translation }: Addend): string {
    const { tiles, relabelling } = this.#context;
    const { q, k, mask, firstHead, endHead } = tiles.at(tile);
    const queries = this.#sortedId(relabelling.positions(q, "queries", translation));
    const keys = this.#sortedId(relabelling.positions(k, "keys", translation));
    return `${queries},${keys},${mask},${firstHead},${endHead}`;
  }

  #sortedId(positions: Positions): number {
    let id = this.#sorted.get(positions);
    if (id === undefined) this.#sorted.set(positions, (id = this.#context.positions.of(positions.sorted).id));
    return id;
  }
}

function inOrder(pieces: readonly Piece[]): readonly Piece[] {
  return pieces.toSorted((a, b) => a.box.offset - b.box.offset);
}
