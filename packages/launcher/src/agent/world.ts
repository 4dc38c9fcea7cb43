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
 * Stores small values of a world, each of which is put once. Values are kept at the root and at each agent on the way
 * down, so that one reply per agent distributes a rank's value to thousands of ranks.
 */
class WorldStore {
  readonly #branches: Branches;
  readonly #values = new Map<string, Buffer>();
  readonly #pendingLinks = new Map<string, Set<Link>>();
  #bytes = 0;

  constructor(branches: Branches) {
    this.#branches = branches;
  }

  /** Stores a value from below. Returns the reason if it cannot be stored. */
  put({ key, value }: FrameOf<"put">): string | undefined {
    // Ranks of several hosts may put the same key concurrently. The root keeps the first value that it receives.
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

  /** Handles a value from the parent. */
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

/** Frames towards the ranks that agents forward without decoding. */
const FORWARDED_FRAME_KINDS: ReadonlySet<Kind> = new Set(["memberTable", "exited", "lost", "failed"]);

/** Interface of a world to its agent. */
interface WorldOptions {
  readonly name: string;
  readonly attempt: number;
  readonly size: number;
  readonly host: Host;
  /** Sends towards the root; undefined at the root. */
  readonly parent: ((frame: LocalWorldFrame) => void) | undefined;
  exitedRanks(): readonly number[];
  disconnectReason(): string | undefined;
  /** Called when all ranks have joined. A new world with the same name may gather from then on. */
  onComplete(): void;
  /** Called when the world was rejected while it gathered. */
  onRefused(refusal: RendezvousRefusal, ranks: readonly number[]): void;
  /** Called when no rank of the world is left below this agent, or the world was closed. */
  onFinished(): void;
  /** Called when a connection is no longer part of this world. */
  onRemoved(link: Link, worldNumber: number): void;
}

/** The state of one agent for the ranks of a job that rendezvous under one name. */
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
  /** The encoded `memberTable` frame, once the world is complete. */
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

  /** Announces the world to an observer if it is complete; otherwise returns false. */
  addObserver(link: Link, worldNumber: number): boolean {
    if (this.#state !== "complete" || this.#memberTable === undefined) return false;
    const { name, attempt, size } = this.#options;
    this.#branches.add(link, worldNumber);
    this.#branches.send(link, { kind: "world", name, attempt, size });
    this.#branches.forward(this.#memberTable, [link]);
    return true;
  }

  /**
   * Handles a frame from a rank, a child agent or an observer. Throws ProtocolError for a frame that the sender may not
   * send.
   */
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

  /**
   * Forwards a frame of the parent agent without decoding it. Returns false for a frame that this agent must decode.
   */
  forwardUndecoded(kind: Kind, content: Buffer): boolean {
    if (!FORWARDED_FRAME_KINDS.has(kind) || this.#state === "over") return false;
    if (kind === "memberTable") this.#completeRendezvous(withLengthPrefix(content));
    else this.#branches.forward(withLengthPrefix(content));
    return true;
  }

  /** Handles a frame from the parent agent. */
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

  /** Handles the end of a connection and the loss of all ranks reached over it. */
  removeLink(link: Link, reason: string): void {
    const ranks = this.#branches.ranksOf(link);
    if (this.#state === "gathering") this.#rendezvous.cancelJoin(ranks);
    else if (this.#state === "complete" && !link.isObserver) this.#exitTracker.recordLosses(ranks, reason);
    this.#remove(link);
    this.#closeIfEmpty(link);
  }

  /**
   * Rejects a world whose rendezvous cannot succeed. All ranks that have joined are notified by this agent or through
   * the root.
   */
  rejectJoins({ code, message }: RendezvousRefusal): void {
    if (this.#state !== "gathering") return;
    // The root notifies all other ranks. The ranks of this agent are notified without waiting for the root.
    this.#branches.sendToParent({ kind: "refused", code, message });
    this.#rejectLocalJoins({ code, message });
  }

  /**
   * Closes the world at this agent. Ranks below lose the control plane, and are reported as lost to all other ranks.
   */
  close(reason: string): void {
    if (this.#state === "over") return;
    const ranks = this.#branches.links.flatMap((link) => this.#branches.ranksOf(link));
    if (this.#state === "complete")
      this.#branches.sendToParent({ kind: "lost", losses: [{ ranks: toRankRanges(ranks), reason }] });
    this.#branches.broadcast({ kind: "closed", reason });
    this.#finish();
  }

  /** Handles the exit of a rank's process. */
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
    // The world became complete before the frame arrived.
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
    // Refuses connections whose rank had already been joined by another process.
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

  /** Removes the connection if no rank is left on it, and closes the world if no rank is left at all. */
  #closeIfEmpty(link: Link): void {
    if (this.#state === "over") return;
    if (this.#branches.ranksOf(link).length === 0) this.#remove(link);
    if (!this.#branches.isEmpty) return;
    this.#exitTracker.flush();
    // Only observers are left to be notified.
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

  /** Returns the ranks that are reached over this connection. */
  #ranksOfLink(link: Link, ranks: Iterable<number>): readonly number[] {
    return [...ranks].filter((rank) => this.#branches.routesTo(link, rank));
  }
}
