import { DebouncedFlush, type Branches, type Link } from "./branches.ts";
import type { ExitTracker } from "./exit-tracker.ts";
import type { FrameOf, RankPosition } from "./frames.ts";
import {
  countRanks,
  subtractRankRanges,
  intersectRankRanges,
  includesRank,
  toRankRanges,
  unionRankRanges,
} from "./rank-ranges.ts";
import type { RankRanges } from "./wire.ts";

/** Requests that come within this time share one gather. */
const WINDOW_MS = 50;
/** At the root, also those that come while it is under way, and no older than this. */
const MAX_SHARED_AGE_MS = 250;
const ROOT_TIMEOUT_MS = 800;
/** An agent's children answer earlier than itself. */
const TIMEOUT_STEP_MS = 100;
const MIN_TIMEOUT_MS = 100;
/** Of 8 MiB that a frame may have; metrics of 10 000 ranks are less. */
const MAX_REPLY_BYTES = 6 * 1024 * 1024;
const MAX_REQUESTED = 1024;

/** As in control_plane.h. */
const STATE_EXITED = 3;
const STATE_FAILED = 4;

interface Requester {
  readonly link: Link;
  readonly request: bigint;
  readonly ranks: RankRanges;
  readonly metrics: boolean;
}

/** Which ranks are requested, and whether with metrics. */
interface Requested {
  readonly ranks: RankRanges;
  readonly metrics: boolean;
}

interface PendingQuery {
  /** The connections that have not answered, and the ranks that were requested of them. */
  readonly pendingLinks: Map<Link, RankRanges>;
  readonly table: PositionTable;
  finish(): void;
}

/** A gather of the root. */
interface PendingGather extends Requested {
  readonly startedAt: number;
  readonly requesters: Requester[];
}

/** Where ranks are: requests are merged on their way to the root, and answers on theirs. */
export class PositionCollector {
  readonly #branches: Branches;
  readonly #exits: Pick<ExitTracker, "exited" | "lost">;
  readonly #batch = new DebouncedFlush(WINDOW_MS, () => this.#flush());
  #requesters: Requester[] = [];
  readonly #requested = new Map<bigint, readonly Requester[]>();
  readonly #queries = new Map<number, PendingQuery>();
  #gathering: PendingGather | undefined;
  #nextRequest = 0n;
  #nextQuery = 0;

  constructor(branches: Branches, exits: Pick<ExitTracker, "exited" | "lost">) {
    this.#branches = branches;
    this.#exits = exits;
  }

  /** From below. */
  request(link: Link, { request, metrics, ranks }: FrameOf<"positionsRequest">): void {
    this.#requesters.push({ link, request, ranks: unionRankRanges([ranks]), metrics: metrics !== 0 });
    this.#batch.schedule();
  }

  /** From above: answered after `timeoutMs` at the latest. */
  query({ query, timeoutMs, metrics, ranks }: FrameOf<"positionsQuery">): void {
    const onQueryReply = (positions: readonly RankPosition[]): void =>
      this.#branches.sendToParent({ kind: "positionsReply", query, positions });
    this.#queryBranches({ ranks: unionRankRanges([ranks]), metrics: metrics !== 0 }, timeoutMs, onQueryReply);
  }

  /** From below. */
  onQueryReply(link: Link, { query, positions }: FrameOf<"positionsReply">): void {
    const pending = this.#queries.get(query);
    const expected = pending?.pendingLinks.get(link);
    if (pending === undefined || expected === undefined) return;
    pending.table.addSubset(positions, expected);
    pending.pendingLinks.delete(link);
    if (pending.pendingLinks.size === 0) pending.finish();
  }

  /** From above. */
  distribute({ request, positions }: FrameOf<"positions">): void {
    this.#deliver(this.#requested.get(request) ?? [], positions);
    this.#requested.delete(request);
  }

  dispose(): void {
    this.#batch.dispose();
    for (const query of [...this.#queries.values()]) query.finish();
  }

  #flush(): void {
    const requesters = this.#requesters;
    this.#requesters = [];
    const ranks = unionRankRanges(requesters.map((each) => each.ranks));
    const metrics = requesters.some((each) => each.metrics);
    if (this.#branches.isRoot) return this.#serve(requesters, { ranks, metrics });
    const request = this.#nextRequest++;
    this.#requested.set(request, requesters);
    // What the root never answers, because it is gone, is forgotten.
    if (this.#requested.size > MAX_REQUESTED) this.#requested.delete(this.#requested.keys().next().value as bigint);
    this.#branches.sendToParent({ kind: "positionsRequest", request, metrics: Number(metrics), ranks });
  }

  /** At the root: by the gather that is under way if it covers these ranks, else by another one. */
  #serve(requesters: readonly Requester[], { ranks, metrics }: Requested): void {
    const running = this.#gathering;
    const isFresh = running !== undefined && performance.now() - running.startedAt <= MAX_SHARED_AGE_MS;
    if (
      isFresh &&
      (running.metrics || !metrics) &&
      countRanks(intersectRankRanges(running.ranks, ranks)) === countRanks(ranks)
    )
      return void running.requesters.push(...requesters);
    // A request for most of the world is one of many: a gather of all ranks answers the others, too.
    const all: RankRanges = [[0, this.#branches.size]];
    const requested = 2 * countRanks(ranks) > this.#branches.size ? all : ranks;
    const gather = { ranks: requested, metrics, startedAt: performance.now(), requesters: [...requesters] };
    this.#gathering = gather;
    this.#queryBranches(gather, ROOT_TIMEOUT_MS, (positions) => {
      if (this.#gathering === gather) this.#gathering = undefined;
      this.#deliver(gather.requesters, this.#addExited(positions, requested));
    });
  }

  #queryBranches(
    requested: Requested,
    timeoutMs: number,
    onComplete: (positions: readonly RankPosition[]) => void,
  ): void {
    const table = new PositionTable();
    const parts = this.#branches.partition(requested.ranks);
    const metrics = Number(requested.metrics);
    const query = this.#nextQuery++;
    const finish = (): void => {
      clearTimeout(timer);
      if (this.#queries.delete(query)) onComplete(table.positions);
    };
    const timer = setTimeout(finish, timeoutMs);
    this.#queries.set(query, { pendingLinks: new Map(parts), table, finish });
    const childMs = Math.max(MIN_TIMEOUT_MS, timeoutMs - TIMEOUT_STEP_MS);
    for (const [link, ranks] of parts)
      this.#branches.send(link, { kind: "positionsQuery", query, timeoutMs: childMs, metrics, ranks });
    if (parts.size === 0) finish();
  }

  /** With the requested ranks that are gone by now, whatever they answered before. */
  #addExited(positions: readonly RankPosition[], requested: RankRanges): readonly RankPosition[] {
    const unknownPosition = { group: 0n, sequence: 0n, index: 0n, operation: "", description: "", metrics: [] };
    const table = new PositionTable();
    const { exited, lost } = this.#exits;
    table.addSubset(positions, subtractRankRanges(requested, toRankRanges([...exited.keys(), ...lost])));
    for (const [rank, last] of exited)
      if (includesRank(requested, rank)) table.add([[rank, 1]], { activity: STATE_EXITED, ...unknownPosition, last });
    for (const rank of lost)
      if (includesRank(requested, rank))
        table.add([[rank, 1]], { activity: STATE_FAILED, ...unknownPosition, last: "" });
    return table.positions;
  }

  /** To each what it requested. */
  #deliver(requesters: readonly Requester[], positions: readonly RankPosition[]): void {
    for (const { link, request, ranks, metrics } of requesters) {
      const table = new PositionTable();
      const given = metrics ? positions : positions.map((position) => ({ ...position, metrics: [] }));
      table.addSubset(given, ranks);
      this.#branches.send(link, { kind: "positions", request, positions: table.positions });
    }
  }
}

/** Places by all but their ranks: ranks that are in the same one are one entry. */
class PositionTable {
  readonly #positions = new Map<string, { readonly position: RankPosition; readonly parts: RankRanges[] }>();

  add(runs: RankRanges, position: Omit<RankPosition, "ranks">): void {
    if (runs.length === 0) return;
    const { activity, group, sequence, index, operation, description, last, metrics } = position;
    const values = metrics.flatMap((each) => Object.values(each));
    const key = [activity, group, sequence, index, operation, description, last, ...values].join("\n");
    const known = this.#positions.get(key);
    if (known !== undefined) known.parts.push(runs);
    else this.#positions.set(key, { position: { ...position, ranks: [] }, parts: [runs] });
  }

  /** Of the positions, those of these ranks. */
  addSubset(positions: readonly RankPosition[], ranks: RankRanges): void {
    for (const position of positions) this.add(intersectRankRanges(unionRankRanges([position.ranks]), ranks), position);
  }

  /** As many as fit into one frame. */
  get positions(): readonly RankPosition[] {
    let bytes = 0;
    const positions: RankPosition[] = [];
    for (const { position, parts } of this.#positions.values()) {
      const ranks = unionRankRanges(parts);
      bytes +=
        (position.metrics.length > 0 ? 144 : 64) +
        8 * ranks.length +
        3 * (position.operation.length + position.description.length + position.last.length);
      if (bytes <= MAX_REPLY_BYTES) positions.push({ ...position, ranks });
    }
    return positions;
  }
}
