import { ThrottledFlush, type Branches } from "./branches.ts";
import type { FrameOf } from "./frames.ts";
import { expandRankRanges, toRankRanges } from "./rank-ranges.ts";

const PARENT_FLUSH_WINDOW_MS = 10;
const CHILDREN_FLUSH_WINDOW_MS = 20;

/** Ranks grouped by a common text, such as the reason of their loss. */
class RanksByReason {
  readonly #groups = new Map<string, number[]>();

  add(text: string, ranks: Iterable<number>): void {
    const group = this.#groups.get(text);
    if (group === undefined) this.#groups.set(text, [...ranks]);
    else group.push(...ranks);
  }

  /** Returns an entry for each group and removes all groups. */
  drainGroups<T>(createEntry: (text: string, ranks: readonly number[]) => T): readonly T[] {
    const groupEntries = [...this.#groups].map(([text, ranks]) => createEntry(text, ranks));
    this.#groups.clear();
    return groupEntries;
  }
}

/**
 * Tracks how the ranks of a world exit: orderly (`leave`), by a failure that they report, or without notice (`lost`).
 * Reports are collected towards the root, which decides and distributes the result. A failure that a rank has reported
 * takes precedence over its loss.
 */
export class ExitTracker {
  readonly #branches: Branches;
  readonly #pendingExits = new RanksByReason();
  readonly #pendingLosses = new RanksByReason();
  readonly #batch: ThrottledFlush;
  // The following fields are used only at the root.
  readonly #exitedRanks = new Map<number, string>();
  readonly #lostRanks = new Set<number>();
  #failedRank: number | undefined;
  #unsentExits: number[] = [];

  constructor(branches: Branches) {
    this.#branches = branches;
    this.#batch = new ThrottledFlush(branches.isRoot ? CHILDREN_FLUSH_WINDOW_MS : PARENT_FLUSH_WINDOW_MS, () =>
      this.#flush(),
    );
  }

  /** At the root: ranks that have exited orderly, with their last operations. */
  get exited(): ReadonlyMap<number, string> {
    return this.#exitedRanks;
  }

  /** At the root: ranks that were lost without notice. */
  get lost(): ReadonlySet<number> {
    return this.#lostRanks;
  }

  /** Records ranks below this agent that have exited orderly. */
  recordExits(exits: FrameOf<"leave">["exits"]): void {
    for (const { ranks: ranges, last } of exits) {
      const ranks = [...expandRankRanges(ranges)];
      for (const rank of ranks) this.#branches.release(rank);
      if (!this.#branches.isRoot) this.#pendingExits.add(last, ranks);
      for (const rank of this.#branches.isRoot ? ranks : []) {
        this.#exitedRanks.set(rank, last);
        this.#unsentExits.push(rank);
      }
    }
    this.#batch.schedule();
  }

  /** Records ranks below this agent that were lost without notice. */
  recordLosses(ranks: readonly number[], reason: string): void {
    for (const rank of ranks) this.#branches.release(rank);
    if (this.#branches.isRoot) for (const rank of ranks) this.#lostRanks.add(rank);
    const unreportedRanks = ranks.filter((rank) => rank !== this.#failedRank);
    if (unreportedRanks.length === 0) return;
    this.#pendingLosses.add(reason, unreportedRanks);
    this.#batch.schedule();
  }

  /**
   * Records the failure of a rank below this agent. Only the first failure of a world is distributed, as the cause of
   * later ones.
   */
  recordFailure(frame: FrameOf<"failed">): void {
    this.#batch.flushNow();
    if (!this.#branches.isRoot) return this.#branches.sendToParent(frame);
    if (this.#failedRank !== undefined) return;
    this.#failedRank = frame.rank;
    this.#branches.broadcast(frame);
  }

  /** Sends the collected reports now. */
  flush(): void {
    this.#batch.flushNow();
  }

  dispose(): void {
    this.#batch.dispose();
  }

  #flush(): void {
    const exits = this.#pendingExits.drainGroups((last, ranks) => ({ ranks: toRankRanges(ranks), last }));
    const losses = this.#pendingLosses.drainGroups((reason, ranks) => ({ ranks: toRankRanges(ranks), reason }));
    if (this.#branches.isRoot) {
      const ranks = toRankRanges(this.#unsentExits);
      this.#unsentExits = [];
      if (ranks.length > 0) this.#branches.broadcast({ kind: "exited", ranks });
      if (losses.length > 0) this.#branches.broadcast({ kind: "lost", losses });
    } else {
      if (exits.length > 0) this.#branches.sendToParent({ kind: "leave", exits });
      if (losses.length > 0) this.#branches.sendToParent({ kind: "lost", losses });
    }
  }
}
