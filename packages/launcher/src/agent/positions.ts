import { Batch } from "./batch.ts";
import type { Branches, Link } from "./branches.ts";
import type { FrameOf, Place } from "./frames.ts";
import { ranksOf, runsOf } from "./runs.ts";
import type { Runs } from "./wire.ts";

/** Requests that come within this time share one gather. */
const WINDOW_MS = 50;
const ROOT_MS = 800;
/** An agent's children answer earlier than itself. */
const LEVEL_MS = 100;
const SHORTEST_MS = 100;
const MOST_ANSWER_BYTES = 1024 * 1024;

/** As in control_plane.h. */
const EXITED = 3;
const FAILED = 4;

interface Requester {
  readonly link: Link;
  readonly request: bigint;
  readonly ranks: Runs;
}

/** Places by what they say: ranks that are in the same one are one entry. */
class PlaceTable {
  readonly #places = new Map<string, { readonly place: Place; readonly ranks: number[] }>();

  add(ranks: Iterable<number>, place: Omit<Place, "runs">): void {
    const { activity, group, sequence, index, operation, description, last } = place;
    const key = [activity, group, sequence, index, operation, description, last].join("\n");
    const known = this.#places.get(key);
    if (known !== undefined) known.ranks.push(...ranks);
    else this.#places.set(key, { place: { ...place, runs: [] }, ranks: [...ranks] });
  }

  /** As many as fit into one frame. */
  get places(): readonly Place[] {
    let bytes = 0;
    const places: Place[] = [];
    for (const { place, ranks } of this.#places.values()) {
      const runs = runsOf(ranks);
      bytes += 64 + 8 * runs.length + 3 * (place.operation.length + place.description.length + place.last.length);
      if (ranks.length > 0 && bytes <= MOST_ANSWER_BYTES) places.push({ ...place, runs });
    }
    return places;
  }
}

interface Query {
  readonly waiting: Map<Link, ReadonlySet<number>>;
  readonly table: PlaceTable;
  finish(): void;
}

/** Where ranks are: requests are merged on their way to the root, answers on theirs, both in the tree. */
export class Positions {
  readonly #branches: Branches;
  /** At the root: where a rank is that is gone. */
  readonly #gone: (rank: number) => Omit<Place, "runs"> | undefined;
  readonly #batch = new Batch(WINDOW_MS, () => this.#flush());
  #requesters: Requester[] = [];
  readonly #requested = new Map<bigint, readonly Requester[]>();
  readonly #queries = new Map<number, Query>();
  #nextRequest = 0n;
  #nextQuery = 0;

  constructor(
    branches: Branches,
    departures: { lastOf(rank: number): string | undefined; isLost(rank: number): boolean },
  ) {
    this.#branches = branches;
    const nowhere = { group: 0n, sequence: 0n, index: 0n, operation: "", description: "" };
    this.#gone = (rank) => {
      const last = departures.lastOf(rank);
      if (last !== undefined) return { activity: EXITED, ...nowhere, last };
      return departures.isLost(rank) ? { activity: FAILED, ...nowhere, last: "" } : undefined;
    };
  }

  /** From below. */
  request(link: Link, { request, ranks }: FrameOf<"positionsRequest">): void {
    this.#requesters.push({ link, request, ranks });
    this.#batch.schedule();
  }

  /** From above: answered after `timeoutMs` at the latest. */
  query({ query, timeoutMs, ranks }: FrameOf<"positionsQuery">): void {
    this.#gather(ranksOf(ranks), timeoutMs, (places) =>
      this.#branches.sendUp({ kind: "positionsAnswer", query, places }),
    );
  }

  /** From below. */
  answer(link: Link, { query, places }: FrameOf<"positionsAnswer">): void {
    const asked = this.#queries.get(query);
    const expected = asked?.waiting.get(link);
    if (asked === undefined || expected === undefined) return;
    for (const place of places)
      asked.table.add(
        [...ranksOf(place.runs)].filter((rank) => expected.has(rank)),
        place,
      );
    asked.waiting.delete(link);
    if (asked.waiting.size === 0) asked.finish();
  }

  /** From above. */
  distribute({ request, places }: FrameOf<"positions">): void {
    this.#deliver(this.#requested.get(request) ?? [], places);
    this.#requested.delete(request);
  }

  dispose(): void {
    this.#batch.dispose();
    for (const query of this.#queries.values()) query.waiting.clear();
    for (const query of [...this.#queries.values()]) query.finish();
  }

  #flush(): void {
    const requesters = this.#requesters;
    this.#requesters = [];
    const ranks = new Set(requesters.flatMap((each) => [...ranksOf(each.ranks)]));
    if (this.#branches.isRoot) return this.#gather(ranks, ROOT_MS, (places) => this.#deliver(requesters, places));
    const request = this.#nextRequest++;
    this.#requested.set(request, requesters);
    // What the root never answers, because it is gone, is forgotten.
    if (this.#requested.size > 1024) this.#requested.delete(this.#requested.keys().next().value as bigint);
    this.#branches.sendUp({ kind: "positionsRequest", request, ranks: runsOf(ranks) });
  }

  #gather(ranks: Iterable<number>, timeoutMs: number, done: (places: readonly Place[]) => void): void {
    const table = new PlaceTable();
    const alive: number[] = [];
    for (const rank of ranks) {
      const gone = this.#gone(rank);
      if (gone === undefined) alive.push(rank);
      else table.add([rank], gone);
    }
    const parts = this.#branches.partition(alive);
    const waiting = new Map([...parts].map(([link, runs]) => [link, new Set(ranksOf(runs))]));
    const query = this.#nextQuery++;
    const finish = (): void => {
      clearTimeout(timer);
      if (this.#queries.delete(query)) done(table.places);
    };
    const timer = setTimeout(finish, timeoutMs);
    this.#queries.set(query, { waiting, table, finish });
    const childMs = Math.max(SHORTEST_MS, timeoutMs - LEVEL_MS);
    for (const [link, runs] of parts)
      this.#branches.send(link, { kind: "positionsQuery", query, timeoutMs: childMs, ranks: runs });
    if (waiting.size === 0) finish();
  }

  /** To each what it asked for. */
  #deliver(requesters: readonly Requester[], places: readonly Place[]): void {
    for (const { link, request, ranks } of requesters) {
      const wanted = new Set(ranksOf(ranks));
      const table = new PlaceTable();
      for (const place of places)
        table.add(
          [...ranksOf(place.runs)].filter((rank) => wanted.has(rank)),
          place,
        );
      this.#branches.send(link, { kind: "positions", request, places: table.places });
    }
  }
}
