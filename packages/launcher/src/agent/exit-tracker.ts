import { ThrottledFlush, type Branches } from "./branches.ts";
import type { FrameOf } from "./frames.ts";
import { expandRankRanges, toRankRanges } from "./rank-ranges.ts";

const PARENT_FLUSH_WINDOW_MS = 10;
const CHILDREN_FLUSH_WINDOW_MS = 20;

/** Ranks by a text that they share. */
class RanksByReason {
  readonly #groups = new Map<string, number[]>();

  add(text: string, ranks: Iterable<number>): void {
    const group = this.#groups.get(text);
    if (group === undefined) this.#groups.set(text, [...ranks]);
    else group.push(...ranks);
  }

  /** All of them; none from then on. */
  drainGroups<T>(createEntry: (text: string, ranks: readonly number[]) => T): readonly T[] {
    const groupEntries = [...this.#groups].map(([text, ranks]) => createEntry(text, ranks));
    this.#groups.clear();
    return groupEntries;
  }
}

/**
 * How the ranks of a world end: in order (`leave`), by a failure that they report, or without notice (`lost`). Collected
 * towards the root, which decides and distributes to all. What a rank reported itself wins over its loss.
 */
export class ExitTracker {
  readonly #branches: Branches;
  readonly #pendingExits = new RanksByReason();
  readonly #pendingLosses = new RanksByReason();
  readonly #batch: ThrottledFlush;
  // What follows is kept at the root.
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

  /** At the root: ranks that have closed in order, and their last operations. */
  get exited(): ReadonlyMap<number, string> {
    return this.#exitedRanks;
  }

  /** At the root: ranks that are gone without notice. */
  get lost(): ReadonlySet<number> {
    return this.#lostRanks;
  }

  /** Ranks below have closed in order. */
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

  /** Ranks below are gone without notice. */
  recordLosses(ranks: readonly number[], reason: string): void {
    for (const rank of ranks) this.#branches.release(rank);
    if (this.#branches.isRoot) for (const rank of ranks) this.#lostRanks.add(rank);
    const unreportedRanks = ranks.filter((rank) => rank !== this.#failedRank);
    if (unreportedRanks.length === 0) return;
    this.#pendingLosses.add(reason, unreportedRanks);
    this.#batch.schedule();
  }

  /** A rank below has failed. Only the first failure of a world is distributed: others follow from it. */
  recordFailure(frame: FrameOf<"failed">): void {
    this.#batch.flushNow();
    if (!this.#branches.isRoot) return this.#branches.sendToParent(frame);
    if (this.#failedRank !== undefined) return;
    this.#failedRank = frame.rank;
    this.#branches.broadcast(frame);
  }

  /** Sends what is collected. */
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
