import { Branches, type Link, type LocalWorldFrame } from "./branches.ts";
import { CallChecker } from "./calls.ts";
import { ExitTracker } from "./exit-tracker.ts";
import { FAILURE_CODES, encode, type FrameOf, type Kind, withLengthPrefix, type WorldFrame } from "./frames.ts";
import { PositionCollector } from "./positions.ts";
import { type Host, type RendezvousRefusal, Rendezvous } from "./rendezvous.ts";
import { countRanks, expandRankRanges, formatRankRanges, toRankRanges } from "./rank-ranges.ts";
import { GroupTable, SplitCollector } from "./splits.ts";
import { LIMITS, ProtocolError } from "./wire.ts";

const MAX_STORE_KEYS = 65_536;
const MAX_STORE_BYTES = 256 * 1024 * 1024;

/**
 * Small values of a world, each put once: kept at the root, and at every agent that they pass on the way down, so that one
 * rank's value reaches thousands by one answer to each agent.
 */
class WorldStore {
  readonly #branches: Branches;
  readonly #values = new Map<string, Buffer>();
  readonly #pendingLinks = new Map<string, Set<Link>>();
  #bytes = 0;

  constructor(branches: Branches) {
    this.#branches = branches;
  }

  /** A value from below. Returns why it cannot be kept, if so. */
  put({ key, value }: FrameOf<"put">): string | undefined {
    // Ranks of several hosts may put a key at the same time: which was first, and stays, is the root's decision.
    if (!this.#branches.isRoot) return void this.#branches.sendToParent({ kind: "put", key, value });
    if (this.#values.has(key)) return undefined;
    if (this.#values.size >= MAX_STORE_KEYS || this.#bytes + value.length > MAX_STORE_BYTES)
      return (
        `store of the world: expected at most ${MAX_STORE_KEYS} values and ${MAX_STORE_BYTES} bytes, ` +
        `received ${this.#values.size + 1} values and ${this.#bytes + value.length} bytes`
      );
    this.#store(key, value);
    return undefined;
  }

  get(link: Link, { key }: FrameOf<"get">): void {
    const value = this.#values.get(key);
    if (value !== undefined) return this.#branches.send(link, { kind: "value", key, value });
    const pendingLinks = this.#pendingLinks.get(key);
    if (pendingLinks !== undefined) return void pendingLinks.add(link);
    this.#pendingLinks.set(key, new Set([link]));
    this.#branches.sendToParent({ kind: "get", key });
  }

  /** A value from above. */
  onValue({ key, value }: FrameOf<"value">): void {
    if (!this.#values.has(key)) this.#store(key, value);
  }

  #store(key: string, value: Buffer): void {
    this.#values.set(key, value);
    this.#bytes += value.length;
    const pendingLinks = this.#pendingLinks.get(key);
    this.#pendingLinks.delete(key);
    if (pendingLinks !== undefined) this.#branches.broadcast({ kind: "value", key, value }, pendingLinks);
  }
}

/** Frames towards the ranks that no agent on the way looks into. */
const FORWARDED_FRAME_KINDS: ReadonlySet<Kind> = new Set(["memberTable", "exited", "lost", "failed"]);

/** What a world needs of its agent. */
interface WorldOptions {
  readonly name: string;
  readonly attempt: number;
  readonly size: number;
  readonly host: Host;
  /** Sends towards the root; undefined at the root. */
  readonly parent: ((frame: LocalWorldFrame) => void) | undefined;
  exitedRanks(): readonly number[];
  disconnectReason(): string | undefined;
  /** It has all its ranks: another of the same name may gather. */
  onComplete(): void;
  /** It was rejected while it gathered. */
  onRefused(refusal: RendezvousRefusal, ranks: readonly number[]): void;
  /** No rank of it is left below this agent. */
  onFinished(): void;
  /** A connection has no more to do with this world. */
  onRemoved(link: Link, worldNumber: number): void;
}

/** The ranks of one job that rendezvous under one name, as one agent of the tree sees them. */
export class World {
  readonly #options: WorldOptions;
  readonly #branches: Branches;
  readonly #rendezvous: Rendezvous;
  readonly #values: WorldStore;
  readonly #exitTracker: ExitTracker;
  readonly #splits: SplitCollector;
  readonly #calls: CallChecker;
  readonly #positions: PositionCollector;
  #state: "gathering" | "complete" | "over" = "gathering";
  /** The frame, once the world is complete. */
  #memberTable: Buffer | undefined;

  constructor(options: WorldOptions) {
    const { name, attempt, size, host } = options;
    this.#options = options;
    this.#branches = new Branches(size, options.parent);
    const groups = new GroupTable(size);
    this.#values = new WorldStore(this.#branches);
    this.#exitTracker = new ExitTracker(this.#branches);
    this.#splits = new SplitCollector(this.#branches, groups);
    this.#calls = new CallChecker(this.#branches, groups);
    this.#positions = new PositionCollector(this.#branches, this.#exitTracker);
    this.#rendezvous = new Rendezvous({
      ...{ name, attempt, host, branches: this.#branches },
      reject: (refusal) => this.rejectJoins(refusal),
      complete: (table) => this.#completeRendezvous(encode({ kind: "memberTable", world: 0, ...table })),
      exitedRanks: () => options.exitedRanks(),
      disconnectReason: () => options.disconnectReason(),
    });
  }

  get isGathering(): boolean {
    return this.#state === "gathering";
  }

  /** Shows the world to an observer, if it is complete: false if it is not. */
  addObserver(link: Link, worldNumber: number): boolean {
    if (this.#state !== "complete" || this.#memberTable === undefined) return false;
    const { name, attempt, size } = this.#options;
    this.#branches.add(link, worldNumber);
    this.#branches.send(link, { kind: "world", name, attempt, size });
    this.#branches.forward(this.#memberTable, [link]);
    return true;
  }

  /** A frame from a rank, a child agent or an observer. Throws ProtocolError for what it may not send. */
  receiveFromLink(link: Link, worldNumber: number, frame: WorldFrame): void {
    if (this.#state === "over") return;
    if (link.isObserver && frame.kind !== "positionsRequest")
      throw new ProtocolError(`expected positionsRequest from an observer, received ${frame.kind}`);
    if (frame.kind === "join") return this.#join(link, worldNumber, frame);
    if (frame.kind === "cancelJoin") return this.#cancelJoin(link, frame);
    if (frame.kind === "refused" && link.isAgent) return this.rejectJoins(frame);
    if (this.#state !== "complete")
      throw new ProtocolError(`expected only join and cancelJoin before the world is complete, received ${frame.kind}`);
    switch (frame.kind) {
      case "put": {
        const refusal = this.#values.put(frame);
        return refusal === undefined ? undefined : this.close(refusal);
      }
      case "get":
        return this.#values.get(link, frame);
      case "leave":
        return this.#leave(link, frame);
      case "lost":
        if (!link.isAgent) break;
        for (const { ranks, reason } of frame.losses)
          this.#exitTracker.recordLosses(this.#ranksOfLink(link, expandRankRanges(ranks)), reason);
        return this.#closeIfEmpty(link);
      case "failed":
        if (this.#branches.routesTo(link, frame.rank)) this.#exitTracker.recordFailure(frame);
        return;
      case "call":
        return this.#calls.onReport(link, frame);
      case "callLogReply":
        return this.#calls.onQueryReply(frame);
      case "mismatch":
        if (!link.isAgent) break;
        return this.#calls.reportMismatch(frame);
      case "split":
        return this.#splits.onSplit(link, frame);
      case "positionsRequest":
        return this.#positions.request(link, frame);
      case "positionsReply":
        return this.#positions.onQueryReply(link, frame);
    }
    throw new ProtocolError(`expected a frame type sent by ranks or child agents, received ${frame.kind}`);
  }

  /** Hands a frame of the parent agent on as it is; false for one that this agent must read itself. */
  forwardUndecoded(kind: Kind, content: Buffer): boolean {
    if (!FORWARDED_FRAME_KINDS.has(kind) || this.#state === "over") return false;
    if (kind === "memberTable") this.#completeRendezvous(withLengthPrefix(content));
    else this.#branches.forward(withLengthPrefix(content));
    return true;
  }

  /** A frame from the parent agent. */
  receiveFromParent(frame: WorldFrame): void {
    if (this.#state === "over") return;
    switch (frame.kind) {
      case "refused":
        return this.#rejectLocalJoins(frame);
      case "closed":
        return this.close(frame.reason);
      case "value":
        return this.#values.onValue(frame);
      case "callLogQuery":
        return this.#calls.onQuery(frame);
      case "mismatch":
        return this.#calls.distribute(frame);
      case "colors":
        return this.#splits.distribute(frame);
      case "positionsQuery":
        return this.#positions.query(frame);
      case "positions":
        return this.#positions.distribute(frame);
    }
    throw new ProtocolError(`expected a frame type sent by parent agents, received ${frame.kind}`);
  }

  /** A connection has ended, with all ranks that it led to. */
  removeLink(link: Link, reason: string): void {
    const ranks = this.#branches.ranksOf(link);
    if (this.#state === "gathering") this.#rendezvous.cancelJoin(ranks);
    else if (this.#state === "complete" && !link.isObserver) this.#exitTracker.recordLosses(ranks, reason);
    this.#remove(link);
    this.#closeIfEmpty(link);
  }

  /** The world cannot come together: every rank that has joined is answered, here or by the root. */
  rejectJoins({ code, message }: RendezvousRefusal): void {
    if (this.#state !== "gathering") return;
    // The root answers all others; this agent's ranks do not wait for it.
    this.#branches.sendToParent({ kind: "refused", code, message });
    this.#rejectLocalJoins({ code, message });
  }

  /** The control plane of this world ends here: ranks elsewhere lose those below, which lose the control plane. */
  close(reason: string): void {
    if (this.#state === "over") return;
    const ranks = this.#branches.links.flatMap((link) => this.#branches.ranksOf(link));
    if (this.#state === "complete")
      this.#branches.sendToParent({ kind: "lost", losses: [{ ranks: toRankRanges(ranks), reason }] });
    this.#branches.broadcast({ kind: "closed", reason });
    this.#finish();
  }

  /** The process of a rank has exited. */
  recordExit(): void {
    if (this.#state === "gathering") this.#rendezvous.rejectIfExited();
  }

  #join(link: Link, worldNumber: number, frame: FrameOf<"join">): void {
    if (this.#state !== "gathering") return;
    for (const { rank, host } of frame.members) {
      if (link.isAgent && frame.hosts[host] === undefined)
        throw new ProtocolError(
          `expected a host index of the frame for rank ${rank}, received ${host} in a frame of ${frame.hosts.length} hosts`,
        );
      if (rank >= LIMITS.ranks)
        throw new ProtocolError(`expected a join frame for a rank below ${LIMITS.ranks}, received rank ${rank}`);
    }
    if (!this.#branches.add(link, worldNumber) && !link.isAgent)
      throw new ProtocolError("expected one join frame per rank, received a second join frame");
    this.#rendezvous.onJoin(link, frame);
  }

  #cancelJoin(link: Link, frame: FrameOf<"cancelJoin">): void {
    const ranks = this.#ranksOfLink(link, expandRankRanges(frame.ranks));
    if (this.#state === "gathering") this.#rendezvous.cancelJoin(ranks);
    // The world has become complete meanwhile.
    else this.#exitTracker.recordLosses(ranks, "");
    this.#closeIfEmpty(link);
  }

  #leave(link: Link, { exits }: FrameOf<"leave">): void {
    const exitedCount = exits.reduce((sum, { ranks }) => sum + countRanks(ranks), 0);
    const exitedRanks = exits.flatMap(({ ranks }) => this.#ranksOfLink(link, expandRankRanges(ranks)));
    if (exitedRanks.length !== exitedCount)
      throw new ProtocolError(
        `expected a leave frame for ${formatRankRanges(this.#branches.ranksOf(link))} of this connection, ` +
          `received one for ${formatRankRanges(exits.flatMap(({ ranks }) => [...expandRankRanges(ranks)]))}`,
      );
    this.#exitTracker.recordExits(exits);
    if (!link.isAgent) link.channel.finish();
    this.#closeIfEmpty(link);
  }

  #completeRendezvous(encodedFrame: Buffer): void {
    if (this.#state !== "gathering") return;
    this.#state = "complete";
    this.#rendezvous.dispose();
    // Processes with the number of a rank that has joined.
    for (const link of this.#branches.links) {
      if (link.isAgent || this.#branches.ranksOf(link).length > 0) continue;
      const message = "duplicate rank: another process has joined with this rank; set a unique RANK for each process";
      this.#branches.send(link, { kind: "refused", code: FAILURE_CODES.mismatch, message });
      this.#remove(link);
      link.channel.finish();
    }
    this.#branches.forward(encodedFrame);
    this.#memberTable = encodedFrame;
    this.#options.onComplete();
  }

  #rejectLocalJoins({ code, message }: RendezvousRefusal): void {
    const ranks = this.#rendezvous.ranks;
    this.#branches.broadcast({ kind: "refused", code, message });
    this.#finish();
    this.#options.onRefused({ code, message }, ranks);
  }

  /** Ranks of this connection are gone: it ends where it led to no other, and the world where none is left. */
  #closeIfEmpty(link: Link): void {
    if (this.#state === "over") return;
    if (this.#branches.ranksOf(link).length === 0) this.#remove(link);
    if (!this.#branches.isEmpty) return;
    this.#exitTracker.flush();
    // Observers are left.
    this.#branches.broadcast({ kind: "closed", reason: "all ranks have exited" });
    this.#finish();
  }

  #finish(): void {
    this.#state = "over";
    this.#rendezvous.dispose();
    this.#exitTracker.dispose();
    this.#positions.dispose();
    for (const link of this.#branches.links) {
      this.#remove(link);
      if (!link.isAgent && !link.isObserver) link.channel.finish();
    }
    this.#options.onFinished();
  }

  #remove(link: Link): void {
    const worldNumber = this.#branches.worldNumberOf(link);
    this.#branches.remove(link);
    if (worldNumber !== undefined) this.#options.onRemoved(link, worldNumber);
  }

  /** Those of the ranks that this connection leads to. */
  #ranksOfLink(link: Link, ranks: Iterable<number>): readonly number[] {
    return [...ranks].filter((rank) => this.#branches.routesTo(link, rank));
  }
}
