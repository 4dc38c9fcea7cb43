import { dtypeBytes, positions } from "@mosaic/attention/core";
import { type AttentionRecord, type TapeReader, type RecordedRank } from "@mosaic/attention/planner";
import { type Content, StorageHistory } from "./content.ts";

/** A block of attention: whose queries meet whose keys and values. */
export interface Tile {
  /** Ranks, in order. */
  readonly queries: readonly number[];
  readonly keys: readonly number[];
  readonly backward: boolean;
}

/** Rows that one batch of messages takes to one rank. */
export interface Payload extends Content {
  readonly to: number;
  readonly bytes: number;
}

/** One batch of messages. */
export interface MessageBatch {
  /** Who sends, e.g. "ring(sp)". */
  readonly label: string;
  readonly bytes: number;
  readonly backward: boolean;
  readonly payloads: readonly Payload[];
}

/** What one rank does, in order: what its traces lack. */
export interface RankSchedule {
  readonly rank: number;
  readonly tiles: readonly Tile[];
  readonly batches: readonly MessageBatch[];
}

/** Reads a record as scripts, one for each rank; with its backward or without. */
export function rankSchedules(record: AttentionRecord, backward: boolean): readonly RankSchedule[] {
  const whose = rowOwners(record);
  return record.ranks.map((rank) => new TapeInterpreter(record, rank, whose).read(backward));
}

/** Reports, of rows by their number in `Names.rows`, which ranks hold them. */
function rowOwners({ ranks, queries, interned }: AttentionRecord): (rows: number) => readonly number[] {
  const owner = new Int32Array(queries.length);
  for (const { at, tape } of ranks) for (const position of positions(queries.spans(at))) owner[position] = tape.rank;
  const known = new Map<number, readonly number[]>();
  return (rows) => {
    let owners = known.get(rows);
    if (!owners) {
      const distinct = new Set<number>();
      for (const position of positions(interned.rows[rows]!)) distinct.add(owner[position]!);
      owners = [...distinct].toSorted((a, b) => a - b);
      known.set(rows, owners);
    }
    return owners;
  };
}

/** Walks along one rank's tape twice: what memory holds can depend on what is done with it later. */
class TapeInterpreter {
  readonly #record: AttentionRecord;
  readonly #rank: RecordedRank;
  readonly #ownersOf: (rows: number) => readonly number[];
  readonly #history: StorageHistory;

  // oxlint-disable-next-line max-params -- the record, one rank of it, and what was found out about all
  constructor(record: AttentionRecord, rank: RecordedRank, whose: (rows: number) => readonly number[]) {
    this.#record = record;
    this.#rank = rank;
    this.#ownersOf = whose;
    this.#history = new StorageHistory({ what: "statistics", of: [rank.tape.rank], rows: 0 });
    const inputs = Object.entries({ q: "Q", k: "K, V", v: "K, V", dOut: "dOut" } as const).map(
      ([end, what]) => [this.#storageOf(rank.tensorViews[end as "q"]), what] as const,
    );
    const toCome = new Map<number, string>(inputs);
    this.#forEachEvent((event, time) => {
      this.#recordContent(event, time);
      if (event.op !== "empty") return;
      const what = toCome.get(event.arg(0));
      if (what) this.#history.used(event.arg(0), time, { what, of: [rank.tape.rank], rows: 0 });
      toCome.delete(event.arg(0));
    });
  }

  read(withBackward: boolean): RankSchedule {
    const { interned } = this.#record;
    const tiles: Tile[] = [];
    const batches: MessageBatch[] = [];
    let backward = false;
    this.#forEachEvent((event, time) => {
      if (event.op === "mark") backward ||= interned.strings[event.arg(0)] === "backward";
      if (backward && !withBackward) return;
      if (event.op === "attend" || event.op === "attendBackward") {
        const [queries, keys] = rowNumbers(event);
        tiles.push({ queries: this.#ownersOf(queries), keys: this.#ownersOf(keys), backward });
      }
      const payloads = event.op === "sendRecv" ? this.#payloads(event, time) : [];
      const bytes = payloads.reduce((sum, payload) => sum + payload.bytes, 0);
      if (bytes > 0) batches.push({ label: interned.strings[event.arg(2)]!, bytes, backward, payloads });
    });
    return { rank: this.#rank.tape.rank, tiles, batches };
  }

  /** Events, numbered: where they lie on the tape is no time. */
  #forEachEvent(visit: (event: TapeReader, time: number) => void): void {
    const event = this.#rank.tape.read();
    for (let time = 0; event.next(); time++) visit(event, time);
  }

  /** What an event states about what memory holds: attention names its operands, copies and messages move them. */
  #recordContent(event: TapeReader, time: number): void {
    const history = this.#history;
    const use = (view: number, what: string, rows: number): void => {
      const length = positions(this.#record.interned.rows[rows]!).length;
      history.used(this.#storageOf(event.arg(view)), time, { what, of: this.#ownersOf(rows), rows: length });
    };
    if (event.op === "empty") history.allocated(event.arg(0), time);
    else if (event.op === "attend" || event.op === "attendBackward") {
      const [queries, keys] = rowNumbers(event);
      for (const [i, what] of operands[event.op].entries()) use(i, what, keyContents.has(what) ? keys : queries);
    } else if (event.op === "copy") {
      history.copied(this.#storageOf(event.arg(0)), time, this.#storageOf(event.arg(1)));
    } else if (event.op === "sendRecv") {
      for (const { sent, view } of transfersOf(event)) {
        if (!sent) history.received(this.#storageOf(view), time);
      }
    }
  }

  /** Of a batch: the parts of one content that go to one rank are one payload. */
  #payloads(event: TapeReader, time: number): readonly Payload[] {
    const payloads = new Map<string, Payload>();
    for (const { sent, peer, view } of transfersOf(event)) {
      if (!sent) continue;
      const { layout, dtype } = this.#rank.tape.views[view]!;
      const { what, of, rows } = this.#history.contentAt(this.#storageOf(view), time);
      // Part of the rows of several ranks: one's own, or results that go home.
      const part = layout.shape[0] !== rows && layout.shape[2] !== rows;
      const owner = resultNames.has(what) ? peer : this.#rank.tape.rank;
      const whose = part && of.includes(owner) ? [owner] : of;
      // One number a row: lse, or delta.
      const payload = { what: layout.shape.length < 4 ? "statistics" : what, of: whose, to: peer };
      const key = Object.values(payload).join();
      const bytes = layout.size * dtypeBytes[dtype] + (payloads.get(key)?.bytes ?? 0);
      payloads.set(key, { ...payload, bytes });
    }
    return [...payloads.values()];
  }

  #storageOf(view: number): number {
    return this.#rank.tape.storageOf[view]!;
  }
}

/** What the operands of attention are, in the order of the tape. */
const operands = {
  attend: ["out", "lse", "Q", "K, V", "K, V"],
  attendBackward: ["dQ", "dK, dV", "dK, dV", "Q", "dOut", "delta", "delta", "K, V", "K, V"],
} as const;
const resultNames: ReadonlySet<string> = new Set(["out", "lse", "dQ", "dK, dV"]);
const keyContents: ReadonlySet<string> = new Set(["K, V", "dK, dV"]);

/** The queries' rows and the keys', as numbers: behind the operands. */
function rowNumbers(event: TapeReader): readonly [number, number] {
  const first = operands[event.op as "attend"].length;
  return [event.arg(first), event.arg(first + 1)];
}

function* transfersOf(event: TapeReader): Generator<{ sent: boolean; peer: number; view: number }> {
  for (let i = 3; i < event.count; i += 3) {
    yield { peer: event.arg(i), sent: event.arg(i + 1) === 1, view: event.arg(i + 2) };
  }
}
