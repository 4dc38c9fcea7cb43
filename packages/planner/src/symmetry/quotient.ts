import type { AttentionRecord } from "../record.ts";
import type { GroupInfo } from "../symbolic/group.ts";
import type { Translations } from "./translations.ts";

/**
 * The ranks of a record, each of which represents its class. All members of a class act at the same time, and only the
 * recorded one is replayed. A message that it sends to another rank is received by the representative of that rank,
 * because some member of the class sends the same message, translated, to this representative.
 */
export class Quotient {
  readonly classes: Translations;
  /** Number of ranks of the mesh. */
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

  /** Returns the index in `record.ranks` of the representative of a rank. */
  representativeIndex(rank: number): number {
    return this.classes.isIdentity ? rank : this.#indexes.get(this.classes.representative(rank))!;
  }

  /**
   * Returns the channel of messages from one rank to another within the groups of a family: the index of the sender's
   * representative, and a key with the family and the translated receiver. It is equal for a message and all its
   * translations.
   */
  channel(family: number, senderRank: number, receiverRank: number): { readonly sender: number; readonly key: number } {
    return {
      sender: this.representativeIndex(senderRank),
      key: family * this.size + this.receiver(senderRank, receiverRank),
    };
  }

  /** Returns the receiver, moved by the translation that maps the sender to its representative. */
  receiver(senderRank: number, receiverRank: number): number {
    return this.classes.isIdentity ? receiverRank : this.classes.relativeRank(senderRank, receiverRank);
  }

  /** Returns a number that is equal for groups that are translations of one another, and different for other groups. */
  orbit(group: number): number {
    return (this.#orbits[group] ??= this.#computeOrbit(this.#groups[group]!));
  }

  #computeOrbit({ family, ranks }: GroupInfo): number {
    const minRepresentative = ranks.reduce((min, rank) => Math.min(min, this.classes.representative(rank)), this.size);
    return family * this.size + minRepresentative;
  }

  /** Returns the indices of the representatives of a group's ranks, each once. */
  groupClasses(group: number): readonly number[] {
    return (this.#classesByGroup[group] ??= [
      ...new Set(this.#groups[group]!.ranks.map((rank) => this.representativeIndex(rank))),
    ]);
  }

  /** Returns the group rank of a world rank. */
  groupRank(group: number, rank: number): number {
    const rankIndices = (this.#groupRanks[group] ??= new Map(this.#groups[group]!.ranks.map((each, i) => [each, i])));
    return rankIndices.get(rank)!;
  }

  /** Returns the world rank of a group rank. */
  worldRank(group: number, groupRank: number): number {
    return this.#groups[group]!.ranks[groupRank]!;
  }

  /** Returns the family of a group, which is equal for all groups along one axis. */
  family(group: number): number {
    return this.#groups[group]!.family;
  }
}
