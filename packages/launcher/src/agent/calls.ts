import type { Branches, Link } from "./branches.ts";
import type { CallRecord, FrameOf } from "./frames.ts";
import { unionRankRanges } from "./rank-ranges.ts";
import type { GroupTable } from "./splits.ts";
import type { RankRanges } from "./wire.ts";

const MAX_PENDING_REPORTS = 4096;
const LOG_QUERY_TIMEOUT_MS = 1000;

interface CallReport {
  readonly history: bigint;
  /** The last rank that reported this history. Earlier ones may have left. */
  rank: number;
  /** The connections that reported it. */
  readonly links: Set<Link>;
}

type CallLog = readonly CallRecord[];

/**
 * Describes the first call at which two ranks diverge, with the lower rank first. Among calls whose histories differ,
 * the first one with different descriptions is preferred, because others differ only in earlier calls or in properties
 * that are not described.
 */
export function mismatchMessage(a: number, callsOfA: CallLog, b: number, callsOfB: CallLog): string {
  if (a > b) return mismatchMessage(b, callsOfB, a, callsOfA);
  const callsByIndex = new Map(callsOfB.map((call) => [call.index, call]));
  const mismatches = callsOfA.flatMap((callA) => {
    const callB = callsByIndex.get(callA.index);
    return callB === undefined || callB.history === callA.history
      ? []
      : [[callA.description, callB.description] as const];
  });
  const mismatch = mismatches.find(([callA, callB]) => callA !== callB) ?? mismatches[0];
  const divergenceText = mismatch
    ? `rank ${a} is at ${mismatch[0]}, rank ${b} at ${mismatch[1]}`
    : `ranks ${a} and ${b} diverged at a collective that is no longer in the call log`;
  return `${divergenceText}; all ranks of a group must call the same collectives in the same order, with the same shapes`;
}

/** Compares the calls of the ranks of a group. Each agent forwards one report when all ranks below it agree. */
export class CallChecker {
  readonly #branches: Branches;
  readonly #groups: GroupTable;
  readonly #reports = new Map<string, CallReport>();
  /** Groups whose ranks have diverged. */
  readonly #mismatchedGroups = new Set<bigint>();
  readonly #queries = new Map<number, (calls: CallLog) => void>();
  #nextQuery = 0;

  constructor(branches: Branches, groups: GroupTable) {
    this.#branches = branches;
    this.#groups = groups;
  }

  onReport(link: Link, { group, index, history, rank, ranks: explicitRanks }: FrameOf<"call">): void {
    const ranks = this.#resolveRanks(group, explicitRanks);
    if (ranks.length === 0 || this.#mismatchedGroups.has(group) || !this.#branches.routesTo(link, rank)) return;
    const key = `${group}:${index}`;
    const report: CallReport = this.#reports.get(key) ?? { history, rank, links: new Set() };
    if (report.history !== history) return this.#queryLogs({ group, ranks: explicitRanks }, report.rank, rank);
    report.rank = rank;
    report.links.add(link);
    this.#reports.set(key, report);
    // Reports of a group that has lost a member may never become complete, so the oldest one is dropped.
    if (this.#reports.size > MAX_PENDING_REPORTS) this.#reports.delete(this.#reports.keys().next().value as string);
    // A rank that has left after its report does not stand in for one that has not reported yet.
    if (!this.#branches.areAllLinks(report.links, ranks)) return;
    this.#reports.delete(key);
    if (this.#branches.includesAll(ranks)) return;
    this.#branches.sendToParent({
      kind: "call",
      group,
      index,
      history,
      rank: report.rank,
      ranks: explicitRanks,
    });
  }

  /** Handles a request of the parent for the call log of a rank below this agent. */
  onQuery({ query, rank, group }: FrameOf<"callLogQuery">): void {
    this.#queryLog(rank, group, (calls) => this.#branches.sendToParent({ kind: "callLogReply", query, rank, calls }));
  }

  /** Handles the call log of a rank below this agent. */
  onQueryReply({ query, calls }: FrameOf<"callLogReply">): void {
    this.#queries.get(query)?.(calls);
    this.#queries.delete(query);
  }

  /** Handles a mismatch found by a child agent or by this agent. */
  reportMismatch({ group, message, ranks }: Omit<FrameOf<"mismatch">, "kind" | "world">): void {
    if (!this.#branches.isRoot) return this.#branches.sendToParent({ kind: "mismatch", group, message, ranks });
    if (!this.#mismatchedGroups.has(group)) this.distribute({ group, message, ranks });
  }

  /** Sends a mismatch that the root has reported to the ranks below this agent. */
  distribute({ group, message, ranks }: Omit<FrameOf<"mismatch">, "kind" | "world">): void {
    this.#mismatchedGroups.add(group);
    this.#branches.multicast({ kind: "mismatch", group, message, ranks }, this.#resolveRanks(group, ranks));
  }

  /** Returns the ranks that must agree: those of the report if it lists any, else those of the group. */
  #resolveRanks(group: bigint, explicitRanks: RankRanges): RankRanges {
    return explicitRanks.length > 0 ? unionRankRanges([explicitRanks]) : (this.#groups.ranksOf(group) ?? []);
  }

  #queryLogs({ group, ranks }: { readonly group: bigint; readonly ranks: RankRanges }, a: number, b: number): void {
    const logByRank = new Map<number, CallLog>();
    for (const rank of [a, b])
      this.#queryLog(rank, group, (calls) => {
        logByRank.set(rank, calls);
        const [callA, callB] = [logByRank.get(a), logByRank.get(b)];
        if (callA === undefined || callB === undefined) return;
        this.reportMismatch({ group, ranks, message: mismatchMessage(a, callA, b, callB) });
      });
    // From here on this agent no longer compares reports of the group.
    if (!this.#branches.isRoot) this.#mismatchedGroups.add(group);
  }

  #queryLog(rank: number, group: bigint, onReply: (calls: CallLog) => void): void {
    const link = this.#branches.linkForRank(rank);
    const query = this.#nextQuery++;
    const timer = setTimeout(
      () => this.onQueryReply({ kind: "callLogReply", world: 0, query, rank, calls: [] }),
      LOG_QUERY_TIMEOUT_MS,
    );
    timer.unref();
    this.#queries.set(query, (calls) => {
      clearTimeout(timer);
      onReply(calls);
    });
    if (link !== undefined) this.#branches.send(link, { kind: "callLogQuery", query, rank, group });
  }
}
