import type { Channel } from "./channel.ts";
import { encode, withWorldNumber, type WorldFrame } from "./frames.ts";
import { countRanks, includesRank, toRankRanges } from "./rank-ranges.ts";
import type { RankRanges } from "./wire.ts";

/**
 * Limits flushes to one per window. The first flush runs at once. Everything after it is flushed together when the
 * window ends.
 */
export class ThrottledFlush {
  readonly #windowMs: number;
  readonly #flush: () => void;
  #lastFlushAt = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | NodeJS.Immediate | undefined;
  #isDisposed = false;

  constructor(windowMs: number, flush: () => void) {
    this.#windowMs = windowMs;
    this.#flush = flush;
  }

  /** Schedules a flush. */
  schedule(): void {
    if (this.#timer !== undefined || this.#isDisposed) return;
    const delayMs = this.#lastFlushAt + this.#windowMs - performance.now();
    this.#timer = delayMs > 0 ? setTimeout(() => this.flushNow(), delayMs) : setImmediate(() => this.flushNow());
  }

  /** Runs a scheduled flush now. */
  flushNow(): void {
    if (this.#timer === undefined) return;
    this.#clearTimer();
    this.#lastFlushAt = performance.now();
    this.#flush();
  }

  dispose(): void {
    this.#clearTimer();
    this.#isDisposed = true;
  }

  #clearTimer(): void {
    clearTimeout(this.#timer as NodeJS.Timeout);
    clearImmediate(this.#timer as NodeJS.Immediate);
    this.#timer = undefined;
  }
}

/**
 * A connection from below: of a rank, a child agent, or an observer. No rank is reached over an observer's connection.
 */
export interface Link {
  readonly channel: Channel;
  readonly isAgent: boolean;
  readonly isObserver: boolean;
}

/** A frame without the world's number, which differs between connections. */
export type LocalWorldFrame = WorldFrame extends infer F ? (F extends WorldFrame ? Omit<F, "world"> : never) : never;

interface Branch {
  /** The world's number on this connection. */
  readonly worldNumber: number;
  readonly ranks: Set<number>;
}

/**
 * Routing of a world at one agent: the connection over which each rank is reached, and the connection towards the root.
 */
export class Branches {
  readonly size: number;
  readonly isRoot: boolean;
  readonly #sendToParent: ((frame: LocalWorldFrame) => void) | undefined;
  readonly #branchOfLink = new Map<Link, Branch>();
  readonly #linkByRank: (Link | undefined)[] = [];

  constructor(size: number, sendToParent: ((frame: LocalWorldFrame) => void) | undefined) {
    this.size = size;
    this.isRoot = sendToParent === undefined;
    this.#sendToParent = sendToParent;
  }

  /** Adds a connection. Returns false if it was added before. */
  add(link: Link, worldNumber: number): boolean {
    if (this.#branchOfLink.has(link)) return false;
    this.#branchOfLink.set(link, { worldNumber, ranks: new Set() });
    return true;
  }

  /** Assigns a rank to a connection. Returns false if the rank is already assigned. */
  assignRank(link: Link, rank: number): boolean {
    if (this.#linkByRank[rank] !== undefined) return false;
    this.#linkByRank[rank] = link;
    this.#branchOfLink.get(link)?.ranks.add(rank);
    return true;
  }

  /** Removes a rank that has exited or was lost. */
  release(rank: number): void {
    const link = this.#linkByRank[rank];
    this.#linkByRank[rank] = undefined;
    if (link !== undefined) this.#branchOfLink.get(link)?.ranks.delete(rank);
  }

  remove(link: Link): void {
    for (const rank of this.ranksOf(link)) this.#linkByRank[rank] = undefined;
    this.#branchOfLink.delete(link);
  }

  get links(): readonly Link[] {
    return [...this.#branchOfLink.keys()];
  }

  worldNumberOf(link: Link): number | undefined {
    return this.#branchOfLink.get(link)?.worldNumber;
  }

  /** Returns the connection to a rank; undefined for a rank that is not below this agent or has been released. */
  linkForRank(rank: number): Link | undefined {
    return this.#linkByRank[rank];
  }

  routesTo(link: Link, rank: number): boolean {
    return this.#linkByRank[rank] === link;
  }

  ranksOf(link: Link): readonly number[] {
    return [...(this.#branchOfLink.get(link)?.ranks ?? [])];
  }

  get isEmpty(): boolean {
    for (const { ranks } of this.#branchOfLink.values()) if (ranks.size > 0) return false;
    return true;
  }

  /**
   * Groups ranks, in ascending order, by connection. Ranks that are not below this agent or have been released are
   * omitted.
   */
  partition(ranks: RankRanges): ReadonlyMap<Link, RankRanges> {
    const ranksByLink = new Map<Link, RankRanges>();
    for (const [link, branch] of this.#branchOfLink) {
      const linkRanks: number[] = [];
      for (const rank of branch.ranks) if (includesRank(ranks, rank)) linkRanks.push(rank);
      if (linkRanks.length > 0) ranksByLink.set(link, toRankRanges(linkRanks));
    }
    return ranksByLink;
  }

  /**
   * Returns whether a set contains all connections over which at least one of the ranks is reached. The ranks are in
   * ascending order.
   */
  areAllLinks(links: ReadonlySet<Link>, ranks: RankRanges): boolean {
    return this.#linksForRanks(ranks).every((link) => links.has(link));
  }

  /** Returns whether all ranks are below this agent. The ranks are in ascending order. */
  includesAll(ranks: RankRanges): boolean {
    let reachableCount = 0;
    for (const { ranks: linkRanks } of this.#branchOfLink.values())
      for (const rank of linkRanks) if (includesRank(ranks, rank)) reachableCount++;
    return reachableCount === countRanks(ranks);
  }

  /** Sends a frame towards the root. At the root, does nothing. */
  sendToParent(frame: LocalWorldFrame): void {
    this.#sendToParent?.(frame);
  }

  send(link: Link, frame: LocalWorldFrame): void {
    const branch = this.#branchOfLink.get(link);
    if (branch !== undefined) link.channel.send({ ...frame, world: branch.worldNumber });
  }

  /** Sends a frame, which is encoded once, to the links; by default to all. */
  broadcast(frame: LocalWorldFrame, links: Iterable<Link> = this.#branchOfLink.keys()): void {
    this.forward(encode({ ...frame, world: 0 }), links);
  }

  /** Sends a frame to each connection over which one of the ranks is reached. The ranks are in ascending order. */
  multicast(frame: LocalWorldFrame, ranks: RankRanges): void {
    this.broadcast(frame, this.#linksForRanks(ranks));
  }

  /** Sends an encoded frame to the links; by default to all. */
  forward(encodedFrame: Buffer, links: Iterable<Link> = this.#branchOfLink.keys()): void {
    const frameByWorldNumber = new Map<number, Buffer>();
    for (const link of links) {
      const worldNumber = this.worldNumberOf(link);
      if (worldNumber === undefined) continue;
      let copy = frameByWorldNumber.get(worldNumber);
      if (copy === undefined) frameByWorldNumber.set(worldNumber, (copy = withWorldNumber(encodedFrame, worldNumber)));
      link.channel.write(copy);
    }
  }

  #linksForRanks(ranks: RankRanges): readonly Link[] {
    const links: Link[] = [];
    for (const [link, branch] of this.#branchOfLink)
      for (const rank of branch.ranks)
        if (includesRank(ranks, rank)) {
          links.push(link);
          break;
        }
    return links;
  }
}
