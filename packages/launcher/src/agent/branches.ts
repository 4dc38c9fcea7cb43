import type { Channel } from "./channel.ts";
import { encode, withWorldNumber, type WorldFrame } from "./frames.ts";
import { countRanks, includesRank, toRankRanges } from "./rank-ranges.ts";
import type { RankRanges } from "./wire.ts";

/** Collects what happens within a window: the first at once, everything after it together. */
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

  /** There is something to flush. */
  schedule(): void {
    if (this.#timer !== undefined || this.#isDisposed) return;
    const delayMs = this.#lastFlushAt + this.#windowMs - performance.now();
    this.#timer = delayMs > 0 ? setTimeout(() => this.flushNow(), delayMs) : setImmediate(() => this.flushNow());
  }

  /** Flushes now what was scheduled. */
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

/** A connection from below: a rank's own, a child agent's, or an observer's, which leads to no rank. */
export interface Link {
  readonly channel: Channel;
  readonly isAgent: boolean;
  readonly isObserver: boolean;
}

/** A frame before it has its world's number on some connection. */
export type LocalWorldFrame = WorldFrame extends infer F ? (F extends WorldFrame ? Omit<F, "world"> : never) : never;

interface Branch {
  /** The world's number on this connection. */
  readonly worldNumber: number;
  readonly ranks: Set<number>;
}

/** The tree of a world around one agent: which connection leads to which rank, and the way towards the root. */
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

  /** Adds a connection; false if it is there. */
  add(link: Link, worldNumber: number): boolean {
    if (this.#branchOfLink.has(link)) return false;
    this.#branchOfLink.set(link, { worldNumber, ranks: new Set() });
    return true;
  }

  /** A rank is reached over this connection from now on; false if another one leads there. */
  assignRank(link: Link, rank: number): boolean {
    if (this.#linkByRank[rank] !== undefined) return false;
    this.#linkByRank[rank] = link;
    this.#branchOfLink.get(link)?.ranks.add(rank);
    return true;
  }

  /** The rank is gone. */
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

  /** The connection towards a rank; undefined for one that is not below this agent, or is gone. */
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

  /** The ranks, in ascending order, by the connection that leads to them; those that are gone or not below are left out. */
  partition(ranks: RankRanges): ReadonlyMap<Link, RankRanges> {
    const ranksByLink = new Map<Link, RankRanges>();
    for (const [link, branch] of this.#branchOfLink) {
      const linkRanks: number[] = [];
      for (const rank of branch.ranks) if (includesRank(ranks, rank)) linkRanks.push(rank);
      if (linkRanks.length > 0) ranksByLink.set(link, toRankRanges(linkRanks));
    }
    return ranksByLink;
  }

  /** How many connections lead to any of the ranks, which are in ascending order. */
  countLinks(ranks: RankRanges): number {
    return this.#linksForRanks(ranks).length;
  }

  /** Whether all of the ranks, which are in ascending order, are below this agent. */
  includesAll(ranks: RankRanges): boolean {
    let reachableCount = 0;
    for (const { ranks: linkRanks } of this.#branchOfLink.values())
      for (const rank of linkRanks) if (includesRank(ranks, rank)) reachableCount++;
    return reachableCount === countRanks(ranks);
  }

  /** Towards the root. */
  sendToParent(frame: LocalWorldFrame): void {
    this.#sendToParent?.(frame);
  }

  send(link: Link, frame: LocalWorldFrame): void {
    const branch = this.#branchOfLink.get(link);
    if (branch !== undefined) link.channel.send({ ...frame, world: branch.worldNumber });
  }

  /** To each of the links, by default all: encoded once. */
  broadcast(frame: LocalWorldFrame, links: Iterable<Link> = this.#branchOfLink.keys()): void {
    this.forward(encode({ ...frame, world: 0 }), links);
  }

  /** To every connection that leads to one of the ranks, which are in ascending order. */
  multicast(frame: LocalWorldFrame, ranks: RankRanges): void {
    this.broadcast(frame, this.#linksForRanks(ranks));
  }

  /** The same of an encoded frame. */
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
