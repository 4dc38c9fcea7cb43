import type { Link } from "./branches.ts";
import { FAILURE_CODES, type FrameOf, type WorldFrame } from "./frames.ts";
import type { Parent } from "./parent.ts";
import type { Host, RendezvousRefusal } from "./rendezvous.ts";
import { ProtocolError } from "./wire.ts";
import { World } from "./world.ts";

/** A connection from below, with the worlds that it is part of. */
export interface Branch extends Link {
  /** Worlds by their numbers on this connection. */
  readonly worlds: Map<number, World>;
  /** The highest number so far. Numbers are not reused. */
  maxWorldNumber: number;
}

interface CachedRefusal extends RendezvousRefusal {
  readonly ranks: Set<number>;
  readonly expiresAt: number;
}

/**
 * One attempt of a launcher's job. By default its ranks form worlds of size `size` whose names begin with the run id.
 */
export interface JobAttempt {
  readonly runId: string;
  readonly attempt: number;
  readonly size: number;
}

/** Time for which ranks that join later receive the refusal of earlier ranks. */
const REFUSAL_TTL_MS = 30_000;

/** The worlds of one agent. They may belong to several jobs or attempts, or have different names. */
export class WorldTable {
  readonly #host: Host;
  readonly #parent: Parent | undefined;
  readonly #openWorlds = new Set<World>();
  readonly #observers = new Set<Branch>();
  /** Worlds that wait for ranks, by name and attempt. */
  readonly #gatheringWorlds = new Map<string, World>();
  /** Ranks of the launcher's job whose processes have exited, in the latest attempt with such a rank. */
  #exits: { readonly job: JobAttempt; readonly ranks: Set<number> } | undefined;
  /** At the root: refusals of worlds whose ranks disagreed. */
  readonly #cachedRefusals = new Map<string, CachedRefusal>();

  constructor(host: Host, parent: Parent | undefined) {
    this.#host = host;
    this.#parent = parent;
  }

  /** Handles a frame from below. Throws ProtocolError for an invalid frame. */
  receive(branch: Branch, frame: WorldFrame): void {
    const world = branch.worlds.get(frame.world);
    if (world !== undefined) return world.receiveFromLink(branch, frame.world, frame);
    // Frames of a world that is over, which were still in flight, are dropped.
    if (frame.world <= branch.maxWorldNumber) return;
    if (frame.kind !== "join" || branch.isObserver)
      throw new ProtocolError(`expected a join frame as the first frame of a world, received ${frame.kind}`);
    if (!branch.isAgent && (frame.world !== 0 || frame.members.length !== 1))
      throw new ProtocolError(
        `expected a join frame for 1 rank of world 0, received ${frame.members.length} ranks of world ${frame.world}`,
      );
    branch.maxWorldNumber = frame.world;
    this.#join(branch, frame);
  }

  /** Announces all existing and future worlds to an observer. */
  addObserver(observer: Branch): void {
    this.#observers.add(observer);
    for (const world of this.#openWorlds) this.#announceWorld(world, observer);
  }

  #announceWorld(world: World, observer: Branch): void {
    if (!world.addObserver(observer, observer.maxWorldNumber + 1)) return;
    observer.worlds.set(++observer.maxWorldNumber, world);
  }

  /** Handles the end of a connection from below. */
  removeBranch(branch: Branch, reason: string): void {
    this.#observers.delete(branch);
    for (const world of [...branch.worlds.values()]) world.removeLink(branch, reason);
  }

  /**
   * Records that a rank's process has exited with 0. Worlds of its job do not wait for the rank. Other worlds are not
   * affected.
   */
  recordExit(job: JobAttempt, rank: number): void {
    if (this.#exits?.job.runId !== job.runId || this.#exits.job.attempt !== job.attempt)
      this.#exits = { job, ranks: new Set() };
    this.#exits.ranks.add(rank);
    for (const world of [...this.#gatheringWorlds.values()]) world.recordExit();
  }

  /** Rejects all worlds whose rendezvous is not complete. */
  reject(refusal: RendezvousRefusal): void {
    for (const world of [...this.#gatheringWorlds.values()]) world.rejectJoins(refusal);
  }

  /** Closes all worlds at this agent. */
  close(reason: string): void {
    for (const world of [...this.#openWorlds]) world.close(reason);
  }

  #join(branch: Branch, frame: FrameOf<"join">): void {
    const key = `${frame.attempt} ${frame.name}`;
    const cachedRefusal = this.#cachedRefusal(key, frame);
    const world = (cachedRefusal ? undefined : this.#gatheringWorlds.get(key)) ?? this.#openWorld(key, frame);
    branch.worlds.set(frame.world, world);
    world.receiveFromLink(branch, frame.world, frame);
    const refusal = cachedRefusal ?? this.#parent?.failure;
    if (refusal !== undefined) world.rejectJoins(refusal);
  }

  /** Returns the exited ranks of the job to which a world belongs. */
  #exitedRanks({ name, attempt, size }: { name: string; attempt: number; size: number }): readonly number[] {
    const { job, ranks = [] } = this.#exits ?? {};
    if (job?.attempt !== attempt || job.size !== size) return [];
    return name === job.runId || name.startsWith(`${job.runId}/`) ? [...ranks] : [];
  }

  #openWorld(key: string, { name, attempt, size }: FrameOf<"join">): World {
    const parentLink = this.#parent?.openWorldLink();
    const leaveGathering = (): void => {
      if (this.#gatheringWorlds.get(key) === world) this.#gatheringWorlds.delete(key);
    };
    const world: World = new World({
      ...{ name, attempt, size, host: this.#host, parent: parentLink?.send },
      exitedRanks: () => this.#exitedRanks({ name, attempt, size }),
      disconnectReason: () => this.#parent?.disconnectReason,
      onComplete: () => {
        leaveGathering();
        for (const observer of this.#observers) this.#announceWorld(world, observer);
      },
      onRefused: (refusal, ranks) => this.#cacheRefusal(key, refusal, ranks),
      onFinished: () => {
        leaveGathering();
        this.#openWorlds.delete(world);
        parentLink?.unregisterWorld();
      },
      onRemoved: (link, worldNumber) => void (link as Branch).worlds.delete(worldNumber),
    });
    parentLink?.registerWorld(world);
    this.#openWorlds.add(world);
    if (!this.#gatheringWorlds.has(key)) this.#gatheringWorlds.set(key, world);
    return world;
  }

  /** Returns the refusal that earlier ranks of this world received, unless one of them joins again. */
  #cachedRefusal(key: string, { members }: FrameOf<"join">): RendezvousRefusal | undefined {
    for (const [cachedKey, { expiresAt }] of this.#cachedRefusals)
      if (expiresAt < performance.now()) this.#cachedRefusals.delete(cachedKey);
    const cachedRefusal = this.#cachedRefusals.get(key);
    if (cachedRefusal === undefined) return undefined;
    if (!members.some(({ rank }) => cachedRefusal.ranks.has(rank))) return cachedRefusal;
    this.#cachedRefusals.delete(key);
    return undefined;
  }

  #cacheRefusal(key: string, { code, message }: RendezvousRefusal, ranks: readonly number[]): void {
    if (this.#parent !== undefined || code !== FAILURE_CODES.mismatch) return;
    const cachedRefusal = this.#cachedRefusals.get(key);
    const expiresAt = cachedRefusal?.expiresAt ?? performance.now() + REFUSAL_TTL_MS;
    this.#cachedRefusals.set(key, {
      code,
      message,
      expiresAt,
      ranks: new Set([...(cachedRefusal?.ranks ?? []), ...ranks]),
    });
  }
}
