import { Batch, type Branches, type Link } from "./branches.ts";
import type { Departures } from "./departures.ts";
import type { FrameOf, Place } from "./frames.ts";
import { countOf, differenceOf, intersectionOf, isIn, runsOf, unionOf } from "./runs.ts";
import type { Runs } from "./wire.ts";

/** Requests that come within this time share one gather. */
const WINDOW_MS = 50;
/** At the root, also those that come while it is under way, and no older than this. */
const SHARED_MS = 250;
const ROOT_MS = 800;
/** An agent's children answer earlier than itself. */
const LEVEL_MS = 100;
const SHORTEST_MS = 100;
const MOST_ANSWER_BYTES = 1024 * 1024;
const MOST_REQUESTED = 1024;

/** As in control_plane.h. */
const EXITED = 3;
const FAILED = 4;

interface Requester {
  readonly link: Link;
  readonly request: bigint;
  readonly ranks: Runs;
}

interface Query {
  /** The connections that have not answered, and the ranks that were requested of them. */
  readonly waiting: Map<Link, Runs>;
  readonly table: PlaceTable;
  finish(): void;
}

/** A gather of the root. */
interface Gather {
  readonly ranks: Runs;
  readonly startedAt: number;
  readonly requesters: Requester[];
}

/** Where ranks are: requests are merged on their way to the root, and answers on theirs. */
export class Positions {
  readonly #branches: Branches;
  readonly #departures: Pick<Departures, "exited" | "lost">;
  readonly #batch = new Batch(WINDOW_MS, () => this.#flush());
  #requesters: Requester[] = [];
  readonly #requested = new Map<bigint, readonly Requester[]>();
  readonly #queries = new Map<number, Query>();
  #gathering: Gather | undefined;
  #nextRequest = 0n;
  #nextQuery = 0;

  constructor(branches: Branches, departures: Pick<Departures, "exited" | "lost">) {
    this.#branches = branches;
    this.#departures = departures;
  }

  /** From below. */
  request(link: Link, { request, ranks }: FrameOf<"positionsRequest">): void {
    this.#requesters.push({ link, request, ranks: unionOf([ranks]) });
    this.#batch.schedule();
  }

  /** From above: answered after `timeoutMs` at the latest. */
  query({ query, timeoutMs, ranks }: FrameOf<"positionsQuery">): void {
    const answer = (places: readonly Place[]): void =>
      this.#branches.sendUp({ kind: "positionsAnswer", query, places });
    this.#gather(unionOf([ranks]), timeoutMs, answer);
  }

  /** From below. */
  answer(link: Link, { query, places }: FrameOf<"positionsAnswer">): void {
    const pending = this.#queries.get(query);
    const expected = pending?.waiting.get(link);
    if (pending === undefined || expected === undefined) return;
    pending.table.addOf(places, expected);
    pending.waiting.delete(link);
    if (pending.waiting.size === 0) pending.finish();
  }

  /** From above. */
  distribute({ request, places }: FrameOf<"positions">): void {
    this.#deliver(this.#requested.get(request) ?? [], places);
    this.#requested.delete(request);
  }

  dispose(): void {
    this.#batch.dispose();
    for (const query of [...this.#queries.values()]) query.finish();
  }

  #flush(): void {
    const requesters = this.#requesters;
    this.#requesters = [];
    const ranks = unionOf(requesters.map((each) => each.ranks));
    if (this.#branches.isRoot) return this.#serve(requesters, ranks);
    const request = this.#nextRequest++;
    this.#requested.set(request, requesters);
    // What the root never answers, because it is gone, is forgotten.
    if (this.#requested.size > MOST_REQUESTED) this.#requested.delete(this.#requested.keys().next().value as bigint);
    this.#branches.sendUp({ kind: "positionsRequest", request, ranks });
  }

  /** At the root: by the gather that is under way if it covers these ranks, else by another one. */
  #serve(requesters: readonly Requester[], ranks: Runs): void {
    const running = this.#gathering;
    const isFresh = running !== undefined && performance.now() - running.startedAt <= SHARED_MS;
    if (isFresh && countOf(intersectionOf(running.ranks, ranks)) === countOf(ranks))
      return void running.requesters.push(...requesters);
    // A request for most of the world is one of many: a gather of all ranks answers the others, too.
    const all: Runs = [[0, this.#branches.size]];
    const requested = 2 * countOf(ranks) > this.#branches.size ? all : ranks;
    const gather = { ranks: requested, startedAt: performance.now(), requesters: [...requesters] };
    this.#gathering = gather;
    this.#gather(requested, ROOT_MS, (places) => {
      if (this.#gathering === gather) this.#gathering = undefined;
      this.#deliver(gather.requesters, this.#withGone(places, requested));
    });
  }

  #gather(ranks: Runs, timeoutMs: number, done: (places: readonly Place[]) => void): void {
    const table = new PlaceTable();
    const parts = this.#branches.partition(ranks);
    const query = this.#nextQuery++;
    const finish = (): void => {
      clearTimeout(timer);
      if (this.#queries.delete(query)) done(table.places);
    };
    const timer = setTimeout(finish, timeoutMs);
    this.#queries.set(query, { waiting: new Map(parts), table, finish });
    const childMs = Math.max(SHORTEST_MS, timeoutMs - LEVEL_MS);
    for (const [link, runs] of parts)
      this.#branches.send(link, { kind: "positionsQuery", query, timeoutMs: childMs, ranks: runs });
    if (parts.size === 0) finish();
  }

  /** With the requested ranks that are gone by now, whatever they answered before. */
  #withGone(places: readonly Place[], requested: Runs): readonly Place[] {
    const nowhere = { group: 0n, sequence: 0n, index: 0n, operation: "", description: "" };
    const table = new PlaceTable();
    const { exited, lost } = this.#departures;
    table.addOf(places, differenceOf(requested, runsOf([...exited.keys(), ...lost])));
    for (const [rank, last] of exited)
      if (isIn(requested, rank)) table.add([[rank, 1]], { activity: EXITED, ...nowhere, last });
    for (const rank of lost)
      if (isIn(requested, rank)) table.add([[rank, 1]], { activity: FAILED, ...nowhere, last: "" });
    return table.places;
  }

  /** To each what it requested. */
  #deliver(requesters: readonly Requester[], places: readonly Place[]): void {
    for (const { link, request, ranks } of requesters) {
      const table = new PlaceTable();
      table.addOf(places, ranks);
      this.#branches.send(link, { kind: "positions", request, places: table.places });
    }
  }
}

/** Places by all but their ranks: ranks that are in the same one are one entry. */
class PlaceTable {
  readonly #places = new Map<string, { readonly place: Place; readonly parts: Runs[] }>();

  add(runs: Runs, place: Omit<Place, "runs">): void {
    if (runs.length === 0) return;
    const { activity, group, sequence, index, operation, description, last } = place;
    const key = [activity, group, sequence, index, operation, description, last].join("\n");
    const known = this.#places.get(key);
    if (known !== undefined) known.parts.push(runs);
    else this.#places.set(key, { place: { ...place, runs: [] }, parts: [runs] });
  }

  /** Of the places, those of these ranks. */
  addOf(places: readonly Place[], ranks: Runs): void {
    for (const place of places) this.add(intersectionOf(unionOf([place.runs]), ranks), place);
  }

  /** As many as fit into one frame. */
  get places(): readonly Place[] {
    let bytes = 0;
    const places: Place[] = [];
    for (const { place, parts } of this.#places.values()) {
      const runs = unionOf(parts);
      bytes += 64 + 8 * runs.length + 3 * (place.operation.length + place.description.length + place.last.length);
      if (bytes <= MOST_ANSWER_BYTES) places.push({ ...place, runs });
    }
    return places;
  }
}
