import { sharedHosts } from "@mosaic/core/context-parallel";
import type { TapeOp } from "./symbolic/tape.ts";

/** Arguments of a collective. */
export interface CollectiveSizes {
  readonly op: TapeOp;
  /** Rank in the group of the broadcast's root. */
  readonly root: number;
  /** Elements by rank in the group; allToAll: to each rank, then from each rank. */
  readonly counts: readonly number[];
  /** Number of elements of the whole tensor, for broadcast and allReduce. */
  readonly size: number;
  readonly elementBytes: number;
}

/** A message of one rank of a collective. */
export interface CollectiveMessage {
  /** Rank in the group. */
  readonly peer: number;
  readonly isSent: boolean;
  readonly elements: number;
}

/** Data that its owner sends to all other ranks. */
interface Share {
  readonly owner: number;
  /** Position, on each host, of the rank that receives the share from outside of the host. */
  readonly position: number;
  readonly elements: number;
}

// As `kMinDividedBroadcastBytes` in packages/runtime/native/collectives/message_schedule.cc.
const MIN_DIVIDED_BROADCAST_BYTES = 64 * 1024;

/**
 * The messages of collectives of a group, as the collectives engine sends them, without empty ones. Every rank
 * exchanges its data directly with every other rank. If some ranks share a host and others do not, allGather, broadcast
 * and the second part of allReduce send a share to each other host once, to a rank that forwards it to the other ranks
 * there.
 */
export class CollectiveMessages {
  readonly #size: number;
  readonly #hosts: HostMembers | undefined;

  /** `hosts` has the host of each member. If it is undefined, messages are direct. */
  constructor(size: number, hosts: readonly number[] | undefined) {
    this.#size = size;
    const distinctHosts = sharedHosts(hosts);
    this.#hosts = distinctHosts && new HostMembers(distinctHosts);
  }

  /** Returns the number of consecutive messages between hosts, and within a host after these. */
  steps(op: TapeOp): { readonly direct: number; readonly forwarded: number } {
    const isForwarded = this.#hosts && (op === "allGather" || op === "broadcast" || op === "allReduce");
    return { direct: op === "allReduce" ? 2 : 1, forwarded: isForwarded ? 1 : 0 };
  }

  /** Returns the messages that a member sends and receives. */
  ofMember(member: number, sizes: CollectiveSizes): readonly CollectiveMessage[] {
    return this.#allMessages(member, sizes).filter(({ elements }) => elements > 0);
  }

  #allMessages(member: number, { op, root, counts, size, elementBytes }: CollectiveSizes): CollectiveMessage[] {
    switch (op) {
      case "allGather":
        return this.#sendToAll(member, this.#memberShares(counts));
      case "reduceScatter":
        return this.#reduceScatter(member, counts);
      case "allToAll":
        return this.#exchange(member, {
          elementsTo: (peer) => counts[peer]!,
          elementsFrom: (peer) => counts[this.#size + peer]!,
        });
      case "broadcast":
        return this.#sendToAll(member, this.#broadcastShares(root, size, size * elementBytes));
      case "allReduce": {
        const shares = balancedCounts(size, this.#size);
        return [...this.#reduceScatter(member, shares), ...this.#sendToAll(member, this.#memberShares(shares))];
      }
      default:
        return [];
    }
  }

  #reduceScatter(member: number, counts: readonly number[]): CollectiveMessage[] {
    return this.#exchange(member, { elementsTo: (peer) => counts[peer]!, elementsFrom: () => counts[member]! });
  }

  /** Returns one message to and from every other member. */
  #exchange(
    member: number,
    { elementsTo, elementsFrom }: Record<"elementsTo" | "elementsFrom", (peer: number) => number>,
  ): CollectiveMessage[] {
    const peers = this.#otherMembers(member);
    return [
      ...peers.map((peer) => ({ peer, isSent: true, elements: elementsTo(peer) })),
      ...peers.map((peer) => ({ peer, isSent: false, elements: elementsFrom(peer) })),
    ];
  }

  #memberShares(counts: readonly number[]): Share[] {
    return counts.map((elements, owner) => ({ owner, position: this.#hosts?.localRank(owner) ?? 0, elements }));
  }

  #broadcastShares(root: number, size: number, bytes: number): Share[] {
    const numShares = this.#hosts && bytes >= MIN_DIVIDED_BROADCAST_BYTES ? this.#hosts.maxMembersPerHost : 1;
    const firstPosition = this.#hosts?.localRank(root) ?? 0;
    return balancedCounts(size, numShares).map((elements, index) => ({
      owner: root,
      position: firstPosition + index,
      elements,
    }));
  }

  #sendToAll(member: number, shares: readonly Share[]): CollectiveMessage[] {
    const peers = this.#otherMembers(member);
    return shares.flatMap((share) => {
      const { owner, elements } = share;
      const isForwarder = this.#hosts?.receiver(share.position, member) === member;
      // Of the shares of others, a member sends only those that it forwards.
      const receivers =
        owner === member || isForwarder
          ? peers.filter((peer) => peer !== owner && this.#senderTo(peer, share) === member)
          : [];
      const sent = receivers.map((peer) => ({ peer, isSent: true, elements }));
      if (owner === member) return sent;
      return [...sent, { peer: this.#senderTo(member, share), isSent: false, elements }];
    });
  }

  /** Returns the member from which a member receives a share. */
  #senderTo(member: number, { owner, position }: Share): number {
    const receiver = this.#hosts?.receiver(position, member) ?? owner;
    return receiver === member ? owner : receiver;
  }

  #otherMembers(member: number): number[] {
    return Array.from({ length: this.#size - 1 }, (_, i) => (i < member ? i : i + 1));
  }
}

/** The members of each host. */
class HostMembers {
  readonly maxMembersPerHost: number;
  readonly #membersByHost = new Map<number, number[]>();
  readonly #hosts: readonly number[];
  readonly #localRanks: readonly number[];

  constructor(hosts: readonly number[]) {
    this.#hosts = hosts;
    this.#localRanks = hosts.map((host, member) => {
      const hostMembers = this.#membersByHost.get(host) ?? [];
      this.#membersByHost.set(host, hostMembers);
      return hostMembers.push(member) - 1;
    });
    this.maxMembersPerHost = Math.max(...[...this.#membersByHost.values()].map(({ length }) => length));
  }

  /** Returns the position of a member on its host. */
  localRank(member: number): number {
    return this.#localRanks[member]!;
  }

  /** Returns the member at a position of the host of `member`. */
  receiver(position: number, member: number): number {
    const hostMembers = this.#membersByHost.get(this.#hosts[member]!)!;
    return hostMembers[position % hostMembers.length]!;
  }
}

/** Returns `n` counts that differ by at most one; the first ones are larger. */
function balancedCounts(count: number, n: number): number[] {
  return Array.from({ length: n }, (_, i) => Math.floor(count / n) + (i < count % n ? 1 : 0));
}
