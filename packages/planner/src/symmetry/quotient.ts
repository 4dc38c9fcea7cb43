import type { AttentionRecord } from "../record.ts";
import type { GroupInfo } from "../symbolic/group.ts";
import type { Translations } from "./translations.ts";

/**
 * The ranks of a record, each of which stands for its class. What all members of a class do at once is done by the one that
 * was recorded: a message that it sends to a member of another class, or of its own, is received by that one's representative,
 * for the same message, translated, goes from some member to the representative.
 */
export class Quotient {
  readonly classes: Translations;
  /** Ranks of the mesh. */
  readonly size: number;
  readonly #indexes = new Map<number, number>();
  readonly #groups: readonly GroupInfo[];
  readonly #orbits: (number | undefined)[] = [];
  readonly #classesByGroup: (readonly number[] | undefined)[] = [];
  readonly #groupRanks: (ReadonlyMap<number, number> | undefined)[] = [];

  constructor({ ranks, classes, groups }: AttentionRecord) {
    this.classes = classes;
    this.size = classes.ranks;
    this.#groups = groups;
    if (!classes.isIdentity) for (const [index, { tape }] of ranks.entries()) this.#indexes.set(tape.rank, index);
  }

  /** Where in `record.ranks` the representative of a rank stands. */
  representativeIndex(rank: number): number {
    return this.classes.isIdentity ? rank : this.#indexes.get(this.classes.representative(rank))!;
  }

  /**
   * Where messages from one rank to another meet within the groups of a family: the sender's number, and the receiver as the
   * sender's representative has it. Equal for a message and all that are translations of it.
   */
  channel(family: number, senderRank: number, receiverRank: number): { readonly sender: number; readonly key: number } {
    return {
      sender: this.representativeIndex(senderRank),
      key: family * this.size + this.receiver(senderRank, receiverRank),
    };
  }

  /** A receiver as the sender's representative has it. */
  receiver(senderRank: number, receiverRank: number): number {
    return this.classes.isIdentity ? receiverRank : this.classes.relativeRank(senderRank, receiverRank);
  }

  /** The number of a group's ranks of different classes, and the same number for groups that are translations of it. */
  orbit(group: number): number {
    return (this.#orbits[group] ??= this.#computeOrbit(this.#groups[group]!));
  }

  #computeOrbit({ family, ranks }: GroupInfo): number {
    const minRepresentative = ranks.reduce((min, rank) => Math.min(min, this.classes.representative(rank)), this.size);
    return family * this.size + minRepresentative;
  }

  /** The numbers of a group's classes, each once. */
  groupClasses(group: number): readonly number[] {
    return (this.#classesByGroup[group] ??= [
      ...new Set(this.#groups[group]!.ranks.map((rank) => this.representativeIndex(rank))),
    ]);
  }

  /** The place of a rank in a group. */
  groupRank(group: number, rank: number): number {
    const rankIndices = (this.#groupRanks[group] ??= new Map(this.#groups[group]!.ranks.map((each, i) => [each, i])));
    return rankIndices.get(rank)!;
  }

  /** The rank at a place of a group. */
  worldRank(group: number, groupRank: number): number {
    return this.#groups[group]!.ranks[groupRank]!;
  }

  /** What all groups along one axis have in common. */
  family(group: number): number {
    return this.#groups[group]!.family;
  }
}
