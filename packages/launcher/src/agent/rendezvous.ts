import { ThrottledFlush, type Branches, type Link } from "./branches.ts";
import { FAILURE_CODES, type FrameOf } from "./frames.ts";
import { formatRankRanges, toRankRanges } from "./rank-ranges.ts";
import { LIMITS } from "./wire.ts";

/** A host, identified by the number of its agent. */
export interface Host {
  readonly agent: number;
  readonly name: string;
}

interface Member {
  readonly rank: number;
  readonly pid: number;
  readonly host: Host;
}

interface JoinParameters {
  readonly size: number;
  readonly timeoutMs: number;
  /** Milliseconds on the clock of `performance.now()`. */
  readonly deadline: number;
}

/** Reason why the rendezvous of a world failed. */
export interface RendezvousRefusal {
  readonly code: number;
  readonly message: string;
}

const BATCH_WINDOW_MS = 5;
const MEMBERS_PER_FRAME = 8192;
/** Other agents wait longer than the root, because only the root can name the missing ranks. */
const NON_ROOT_EXTRA_TIMEOUT_MS = 1500;
/** The longest delay of Node's timers. Node replaces a longer delay by 1 ms. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/** Interface of a rendezvous to its world. */
export interface RendezvousOptions {
  readonly name: string;
  readonly attempt: number;
  readonly branches: Branches;
  readonly host: Host;
  reject(refusal: RendezvousRefusal): void;
  /** Called when all ranks have joined, only at the root. */
  complete(table: Pick<FrameOf<"memberTable">, "hosts" | "members">): void;
  /** Returns the ranks whose processes have exited, as reported to this agent. */
  exitedRanks(): readonly number[];
  /** Returns the reason why this agent has no connection to its parent; undefined if it is connected. */
  disconnectReason(): string | undefined;
}

/**
 * Gathers the members of a world. Agents send them towards the root in batches, and the root waits until all have
 * joined.
 */
export class Rendezvous {
  readonly #options: RendezvousOptions;
  readonly #members = new Map<number, Member>();
  /** Members that have not been sent towards the root yet. */
  readonly #unsentMembers: { readonly member: Member; readonly parameters: JoinParameters }[] = [];
  readonly #batch = new ThrottledFlush(BATCH_WINDOW_MS, () => this.#flush());
  #parameters: JoinParameters | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(options: RendezvousOptions) {
    this.#options = options;
  }

  /** The ranks that have joined at this agent. */
  get ranks(): readonly number[] {
    return [...this.#members.keys()];
  }

  onJoin(link: Link, frame: FrameOf<"join">): void {
    const parameters = {
      size: frame.size,
      timeoutMs: frame.timeoutMs,
      deadline: performance.now() + frame.remainingMs,
    };
    for (const { rank, pid, host } of frame.members) {
      const member = { rank, pid, host: link.isAgent ? (frame.hosts[host] as Host) : this.#options.host };
      if (!this.#addMember(link, member, parameters)) return;
    }
    this.#setDeadline(parameters);
    const { branches } = this.#options;
    if (!branches.isRoot) this.#batch.schedule();
    else if (this.#members.size === branches.size) return this.#options.complete(this.#memberTable());
    this.rejectIfExited();
  }

  /**
   * Rejects the world if a rank has exited that has not joined or is no longer connected. Such a rank will not join.
   */
  rejectIfExited(): void {
    const missingRanks = this.#options.exitedRanks().filter((rank) => !this.#members.has(rank));
    if (missingRanks.length === 0) return;
    // Pending joins are sent first, because the parent can only reject a world that it has.
    this.#batch.flushNow();
    const exitText = `${formatRankRanges(missingRanks)} of ${this.#options.branches.size} exited before all ranks had joined`;
    const message = `${exitText}; call init on all ranks before any of them exits`;
    this.#options.reject({ code: FAILURE_CODES.peerLost, message });
  }

  /** Removes ranks that have joined and were lost. */
  cancelJoin(ranks: readonly number[]): void {
    const { branches } = this.#options;
    this.#batch.flushNow();
    for (const rank of ranks) {
      this.#members.delete(rank);
      branches.release(rank);
    }
    if (ranks.length > 0) branches.sendToParent({ kind: "cancelJoin", ranks: toRankRanges(ranks) });
    if (this.#members.size > 0) this.rejectIfExited();
  }

  dispose(): void {
    this.#batch.dispose();
    clearTimeout(this.#timer);
  }

  /** Returns false if the world is rejected because of this member. */
  #addMember(link: Link, member: Member, parameters: JoinParameters): boolean {
    const { branches } = this.#options;
    if (branches.isRoot) {
      const conflictMessage = this.#describeConflict(member, parameters);
      if (conflictMessage !== undefined) {
        this.#options.reject({ code: FAILURE_CODES.mismatch, message: conflictMessage });
        return false;
      }
    } else {
      this.#unsentMembers.push({ member, parameters });
    }
    // A second process with the same rank is rejected by the root, which receives both joins.
    if (branches.assignRank(link, member.rank)) this.#members.set(member.rank, member);
    return true;
  }

  #describeConflict({ rank, pid, host }: Member, { size }: JoinParameters): string | undefined {
    const firstMember = this.#members.values().next().value;
    const expected = this.#parameters?.size ?? size;
    if (size !== expected)
      return `WORLD_SIZE mismatch: ${size} on rank ${rank}, ${expected} on rank ${firstMember?.rank}; set the same WORLD_SIZE on all ranks`;
    if (size > LIMITS.ranks) return `WORLD_SIZE: expected at most ${LIMITS.ranks} ranks, received ${size}`;
    if (rank >= size) return `RANK: expected an integer from 0 to ${size - 1}, received ${rank}`;
    const previousMember = this.#members.get(rank);
    if (previousMember === undefined) return undefined;
    const formatHostSuffix = (hostName: string): string =>
      previousMember.host.agent === host.agent ? "" : ` on ${hostName}`;
    return `duplicate rank ${rank}: pid ${previousMember.pid}${formatHostSuffix(previousMember.host.name)} and pid ${pid}${formatHostSuffix(host.name)}; each process needs a unique RANK`;
  }

  /** Sets the deadline of the rendezvous to the earliest deadline of all members. */
  #setDeadline(parameters: JoinParameters): void {
    if (this.#parameters !== undefined && this.#parameters.deadline <= parameters.deadline) return;
    this.#parameters = { ...parameters, size: this.#parameters?.size ?? parameters.size };
    clearTimeout(this.#timer);
    const extraDelayMs = this.#options.branches.isRoot ? 0 : NON_ROOT_EXTRA_TIMEOUT_MS;
    const remainingMs = Math.max(0, parameters.deadline + extraDelayMs - performance.now());
    this.#timer = setTimeout(() => this.#expire(), Math.min(remainingMs, MAX_TIMER_MS));
  }

  #expire(): void {
    const { branches } = this.#options;
    const timeoutText = `rendezvous timed out after ${(this.#parameters?.timeoutMs ?? 0) / 1000} s: `;
    const cause = branches.isRoot
      ? this.#describeMissing()
      : (this.#options.disconnectReason() ?? "the root agent does not respond");
    this.#options.reject({ code: FAILURE_CODES.timeout, message: timeoutText + cause });
  }

  #describeMissing(): string {
    const { size } = this.#options.branches;
    const missingRanks: number[] = [];
    for (let rank = 0; rank < size; rank++) if (!this.#members.has(rank)) missingRanks.push(rank);
    return (
      `${formatRankRanges(missingRanks)} of ${size} ${missingRanks.length === 1 ? "is" : "are"} missing; check the output of the missing ranks, ` +
      "and set the same WORLD_SIZE, MASTER_ADDR, MASTER_PORT and MOSAIC_RUN_ID on all ranks"
    );
  }

  /**
   * Sends members towards the root. Members with different world sizes are sent in separate frames, so that the root
   * rejects them.
   */
  #flush(): void {
    const { name, attempt, branches } = this.#options;
    const unsentMembers = this.#unsentMembers.splice(0);
    for (const size of new Set(unsentMembers.map(({ parameters }) => parameters.size))) {
      const sameSizeMembers = unsentMembers.filter(({ parameters }) => parameters.size === size);
      for (let batchStart = 0; batchStart < sameSizeMembers.length; batchStart += MEMBERS_PER_FRAME) {
        const memberBatch = sameSizeMembers.slice(batchStart, batchStart + MEMBERS_PER_FRAME);
        const { timeoutMs, deadline } = memberBatch
          .map(({ parameters }) => parameters)
          .reduce((a, b) => (b.deadline < a.deadline ? b : a));
        const remainingMs = Math.max(0, Math.round(deadline - performance.now()));
        const hosts = [...new Map(memberBatch.map(({ member }) => [member.host.agent, member.host])).values()];
        const hostIndices = new Map(hosts.map(({ agent }, i) => [agent, i]));
        const members = memberBatch.map(({ member: { rank, pid, host } }) => ({
          rank,
          pid,
          host: hostIndices.get(host.agent) ?? 0,
        }));
        branches.sendToParent({ kind: "join", name, attempt, size, timeoutMs, remainingMs, hosts, members });
      }
    }
  }

  /** Returns the table of all members. Hosts are numbered in the order of their lowest ranks. */
  #memberTable(): Pick<FrameOf<"memberTable">, "hosts" | "members"> {
    const hostIndices = new Map<number, number>();
    const hosts: string[] = [];
    const members = Array.from({ length: this.#members.size }, (_, rank) => {
      const { pid, host } = this.#members.get(rank) as Member;
      let hostIndex = hostIndices.get(host.agent);
      if (hostIndex === undefined) {
        hostIndex = hosts.push(host.name) - 1;
        hostIndices.set(host.agent, hostIndex);
      }
      return { host: hostIndex, pid };
    });
    return { hosts, members };
  }
}
