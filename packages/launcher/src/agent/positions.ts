import { ThrottledFlush, type Branches, type Link } from "./branches.ts";
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

/** Requests within this time share one gather. */
const BATCH_WINDOW_MS = 50;
/** At the root, later requests share a gather that is still running if it is not older than this. */
const MAX_SHARED_AGE_MS = 250;
const ROOT_TIMEOUT_MS = 800;
/** Each agent's timeout is shorter than its parent's by this time. */
const TIMEOUT_STEP_MS = 100;
const MIN_TIMEOUT_MS = 100;
/** Below the maximum frame of 8 MiB. The metrics of 10 000 ranks are smaller. */
const MAX_REPLY_BYTES = 6 * 1024 * 1024;
const MAX_PENDING_REQUESTS = 1024;

/** Values of `activity`, as in control_plane.h. */
const ACTIVITY_EXITED = 3;
const ACTIVITY_FAILED = 4;

interface Requester {
  readonly link: Link;
  readonly request: bigint;
  readonly ranks: RankRanges;
  readonly includesMetrics: boolean;
}

/** The requested ranks, and whether metrics are requested. */
interface PositionSelection {
  readonly ranks: RankRanges;
  readonly includesMetrics: boolean;
}

interface PendingQuery {
  /** The connections that have not replied yet, with the ranks that were requested over each. */
  readonly pendingLinks: Map<Link, RankRanges>;
  readonly table: PositionTable;
  finish(): void;
}

/** A running gather of the root. */
interface PendingGather extends PositionSelection {
  readonly startedAt: number;
  readonly requesters: Requester[];
}

/** Collects the positions of ranks. Requests and replies are merged at each agent on the way to the root. */
export class PositionCollector {
  readonly #branches: Branches;
  readonly #exitTracker: Pick<ExitTracker, "exited" | "lost">;
  readonly #batch = new ThrottledFlush(BATCH_WINDOW_MS, () => this.#flush());
  #requesters: Requester[] = [];
  readonly #pendingRequests = new Map<bigint, readonly Requester[]>();
  readonly #queries = new Map<number, PendingQuery>();
  #pendingGather: PendingGather | undefined;
  #nextRequest = 0n;
  #nextQuery = 0;

  constructor(branches: Branches, exitTracker: Pick<ExitTracker, "exited" | "lost">) {
    this.#branches = branches;
    this.#exitTracker = exitTracker;
  }

  /** Handles a request from below. */
  request(link: Link, { request, metrics, ranks }: FrameOf<"positionsRequest">): void {
    this.#requesters.push({ link, request, ranks: unionRankRanges([ranks]), includesMetrics: metrics !== 0 });
    this.#batch.schedule();
  }

  /** Handles a query of the parent. The reply is sent after `timeoutMs` at the latest. */
  query({ query, timeoutMs, metrics, ranks }: FrameOf<"positionsQuery">): void {
    const onQueryReply = (positions: readonly RankPosition[]): void =>
      this.#branches.sendToParent({ kind: "positionsReply", query, positions });
    this.#queryBranches({ ranks: unionRankRanges([ranks]), includesMetrics: metrics !== 0 }, timeoutMs, onQueryReply);
  }

  /** Handles a reply from below. */
  onQueryReply(link: Link, { query, positions }: FrameOf<"positionsReply">): void {
    const pendingQuery = this.#queries.get(query);
    const requestedRanks = pendingQuery?.pendingLinks.get(link);
    if (pendingQuery === undefined || requestedRanks === undefined) return;
    pendingQuery.table.addSubset(positions, requestedRanks);
    pendingQuery.pendingLinks.delete(link);
    if (pendingQuery.pendingLinks.size === 0) pendingQuery.finish();
  }

  /** Delivers the positions that the parent sends to the requesters. */
  distribute({ request, positions }: FrameOf<"positions">): void {
    this.#deliver(this.#pendingRequests.get(request) ?? [], positions);
    this.#pendingRequests.delete(request);
  }

  dispose(): void {
    this.#batch.dispose();
    for (const query of [...this.#queries.values()]) query.finish();
  }

  #flush(): void {
    const requesters = this.#requesters;
    this.#requesters = [];
    const ranks = unionRankRanges(requesters.map((requester) => requester.ranks));
    const includesMetrics = requesters.some((requester) => requester.includesMetrics);
    if (this.#branches.isRoot) return this.#serveRequesters(requesters, { ranks, includesMetrics });
    const request = this.#nextRequest++;
    this.#pendingRequests.set(request, requesters);
    // Requests without a reply, for example because the root was lost, are dropped.
    if (this.#pendingRequests.size > MAX_PENDING_REQUESTS)
      this.#pendingRequests.delete(this.#pendingRequests.keys().next().value as bigint);
    this.#branches.sendToParent({ kind: "positionsRequest", request, metrics: Number(includesMetrics), ranks });
  }

  /** At the root: adds the requesters to the running gather if it covers their ranks, else starts a new one. */
  #serveRequesters(requesters: readonly Requester[], { ranks, includesMetrics }: PositionSelection): void {
    const pendingGather = this.#pendingGather;
    const isShareable = pendingGather !== undefined && performance.now() - pendingGather.startedAt <= MAX_SHARED_AGE_MS;
    if (
      isShareable &&
      (pendingGather.includesMetrics || !includesMetrics) &&
      countRanks(intersectRankRanges(pendingGather.ranks, ranks)) === countRanks(ranks)
    )
      return void pendingGather.requesters.push(...requesters);
    // A request for most of the world is likely followed by others, which a gather of all ranks can serve, too.
    const allRanks: RankRanges = [[0, this.#branches.size]];
    const requestedRanks = 2 * countRanks(ranks) > this.#branches.size ? allRanks : ranks;
    const gather = {
      ranks: requestedRanks,
      includesMetrics,
      startedAt: performance.now(),
      requesters: [...requesters],
    };
    this.#pendingGather = gather;
    this.#queryBranches(gather, ROOT_TIMEOUT_MS, (positions) => {
      if (this.#pendingGather === gather) this.#pendingGather = undefined;
      this.#deliver(gather.requesters, this.#addExited(positions, requestedRanks));
    });
  }

  #queryBranches(
    selection: PositionSelection,
    timeoutMs: number,
    onComplete: (positions: readonly RankPosition[]) => void,
  ): void {
    const table = new PositionTable();
    const ranksByLink = this.#branches.partition(selection.ranks);
    const metrics = Number(selection.includesMetrics);
    const query = this.#nextQuery++;
    const finish = (): void => {
      clearTimeout(timer);
      if (this.#queries.delete(query)) onComplete(table.positions);
    };
    const timer = setTimeout(finish, timeoutMs);
    this.#queries.set(query, { pendingLinks: new Map(ranksByLink), table, finish });
    const childTimeoutMs = Math.max(MIN_TIMEOUT_MS, timeoutMs - TIMEOUT_STEP_MS);
    for (const [link, ranks] of ranksByLink)
      this.#branches.send(link, { kind: "positionsQuery", query, timeoutMs: childTimeoutMs, metrics, ranks });
    if (ranksByLink.size === 0) finish();
  }

  /** Adds the requested ranks that have exited or were lost. For these, earlier replies are ignored. */
  #addExited(positions: readonly RankPosition[], requestedRanks: RankRanges): readonly RankPosition[] {
    const unknownPosition = { group: 0n, sequence: 0n, index: 0n, operation: "", description: "", metrics: [] };
    const table = new PositionTable();
    const { exited, lost } = this.#exitTracker;
    table.addSubset(positions, subtractRankRanges(requestedRanks, toRankRanges([...exited.keys(), ...lost])));
    for (const [rank, last] of exited)
      if (includesRank(requestedRanks, rank))
        table.add([[rank, 1]], { activity: ACTIVITY_EXITED, ...unknownPosition, last });
    for (const rank of lost)
      if (includesRank(requestedRanks, rank))
        table.add([[rank, 1]], { activity: ACTIVITY_FAILED, ...unknownPosition, last: "" });
    return table.positions;
  }

  /** Sends each requester the positions that it requested. */
  #deliver(requesters: readonly Requester[], positions: readonly RankPosition[]): void {
    for (const { link, request, ranks, includesMetrics } of requesters) {
      const table = new PositionTable();
      const replyPositions = includesMetrics ? positions : positions.map((position) => ({ ...position, metrics: [] }));
      table.addSubset(replyPositions, ranks);
      this.#branches.send(link, { kind: "positions", request, positions: table.positions });
    }
  }
}

/** Positions keyed by all fields except the ranks. Ranks with the same position share one entry. */
class PositionTable {
  readonly #positions = new Map<string, { readonly position: RankPosition; readonly rangeLists: RankRanges[] }>();

  add(ranges: RankRanges, position: Omit<RankPosition, "ranks">): void {
    if (ranges.length === 0) return;
    const { activity, group, sequence, index, operation, description, last, metrics } = position;
    const values = metrics.flatMap((rankMetrics) => Object.values(rankMetrics));
    const key = [activity, group, sequence, index, operation, description, last, ...values].join("\n");
    const knownPosition = this.#positions.get(key);
    if (knownPosition !== undefined) knownPosition.rangeLists.push(ranges);
    else this.#positions.set(key, { position: { ...position, ranks: [] }, rangeLists: [ranges] });
  }

  /** Adds the positions of some of the ranks. */
  addSubset(positions: readonly RankPosition[], ranks: RankRanges): void {
    for (const position of positions) this.add(intersectRankRanges(unionRankRanges([position.ranks]), ranks), position);
  }

  /** The positions, as many as fit into one frame. */
  get positions(): readonly RankPosition[] {
    let bytes = 0;
    const positions: RankPosition[] = [];
    for (const { position, rangeLists } of this.#positions.values()) {
      const ranks = unionRankRanges(rangeLists);
      bytes +=
        (position.metrics.length > 0 ? 144 : 64) +
        8 * ranks.length +
        3 * (position.operation.length + position.description.length + position.last.length);
      if (bytes <= MAX_REPLY_BYTES) positions.push({ ...position, ranks });
    }
    return positions;
  }
}
