import { DebouncedFlush, type Branches } from "./branches.ts";
import type { FrameOf } from "./frames.ts";
import { expandRankRanges, toRankRanges } from "./rank-ranges.ts";

const TO_PARENT_MS = 10;
const TO_CHILDREN_MS = 20;

/** Ranks by a text that they share. */
class RanksByReason {
  readonly #groups = new Map<string, number[]>();

  add(text: string, ranks: Iterable<number>): void {
    const group = this.#groups.get(text);
    if (group === undefined) this.#groups.set(text, [...ranks]);
    else group.push(...ranks);
  }

  /** All of them; none from then on. */
  takeVerdicts<T>(make: (text: string, ranks: readonly number[]) => T): readonly T[] {
    const taken = [...this.#groups].map(([text, ranks]) => make(text, ranks));
    this.#groups.clear();
    return taken;
  }
}

/**
 * How the ranks of a world end: in order (`leave`), by a failure that they report, or without notice (`lost`). Collected
 * towards the root, which decides and distributes to all. What a rank reported itself wins over its loss.
 */
export class ExitTracker {
  readonly #branches: Branches;
  readonly #exiting = new RanksByReason();
  readonly #pendingLost = new RanksByReason();
  readonly #batch: DebouncedFlush;
  // What follows is kept at the root.
  readonly #exited = new Map<number, string>();
  readonly #lostRanks = new Set<number>();
  #failed: number | undefined;
  #unsentExits: number[] = [];

  constructor(branches: Branches) {
    this.#branches = branches;
    this.#batch = new DebouncedFlush(branches.isRoot ? TO_CHILDREN_MS : TO_PARENT_MS, () => this.#flush());
  }

  /** At the root: ranks that have closed in order, and their last operations. */
  get exited(): ReadonlyMap<number, string> {
    return this.#exited;
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
      if (!this.#branches.isRoot) this.#exiting.add(last, ranks);
      for (const rank of this.#branches.isRoot ? ranks : []) {
        this.#exited.set(rank, last);
        this.#unsentExits.push(rank);
      }
    }
    this.#batch.schedule();
  }

  /** Ranks below are gone without notice. */
  recordLost(ranks: readonly number[], reason: string): void {
    for (const rank of ranks) this.#branches.release(rank);
    if (this.#branches.isRoot) for (const rank of ranks) this.#lostRanks.add(rank);
    const unknown = ranks.filter((rank) => rank !== this.#failed);
    if (unknown.length === 0) return;
    this.#pendingLost.add(reason, unknown);
    this.#batch.schedule();
  }

  /** A rank below has failed. Only the first failure of a world is distributed: others follow from it. */
  recordFailure(frame: FrameOf<"failed">): void {
    this.#batch.flushNow();
    if (!this.#branches.isRoot) return this.#branches.sendToParent(frame);
    if (this.#failed !== undefined) return;
    this.#failed = frame.rank;
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
    const exits = this.#exiting.takeVerdicts((last, ranks) => ({ ranks: toRankRanges(ranks), last }));
    const losses = this.#pendingLost.takeVerdicts((reason, ranks) => ({ ranks: toRankRanges(ranks), reason }));
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
