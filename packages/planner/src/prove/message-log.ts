import type { Quotient } from "../symmetry/quotient.ts";
import type { PostedBatch } from "./batch.ts";
import type { Content } from "./content.ts";

/** What a representative brought to a collective. */
export interface CollectiveInput {
  readonly batch: PostedBatch;
  readonly input: Content;
}

/** From which world rank to which. */
export interface Endpoints {
  readonly senderRank: number;
  readonly receiverRank: number;
}

/**
 * All that representatives sent, as they had it in memory: what any rank sends is what its representative sends, translated. A
 * message is found by its ends, whichever ranks of their classes these are, and its number among those between them.
 */
export class MessageLog {
  readonly #quotient: Quotient;
  readonly #sentContents: Map<number, Content[]>[] = [];
  readonly #collectiveInputs = new Map<string, CollectiveInput>();

  constructor(quotient: Quotient) {
    this.#quotient = quotient;
  }

  /** A message within a group. */
  addMessage(group: number, { senderRank: from, receiverRank: to }: Endpoints, message: Content): void {
    const { sender, key } = this.#quotient.channel(this.#quotient.family(group), from, to);
    const channels = (this.#sentContents[sender] ??= new Map<number, Content[]>());
    const messages = channels.get(key);
    if (messages) messages.push(message);
    else channels.set(key, [message]);
  }

  /** The messages from one rank of a group to another, in order, as the representative of the one sent them. */
  messages(group: number, { senderRank: from, receiverRank: to }: Endpoints): readonly Content[] {
    const { sender, key } = this.#quotient.channel(this.#quotient.family(group), from, to);
    return this.#sentContents[sender]?.get(key) ?? NO_MESSAGES;
  }

  /** A representative joins a collective of a group. */
  addCollectiveInput(batch: PostedBatch, input: Content): void {
    this.#collectiveInputs.set(this.#inputKey(batch.index, batch.group, batch.call), { batch, input });
  }

  /** What the representative of a rank brought to the call of that number in its group of the same family. */
  collectiveInput(rank: number, group: number, call: number): CollectiveInput | undefined {
    return this.#collectiveInputs.get(this.#inputKey(this.#quotient.representativeIndex(rank), group, call));
  }

  #inputKey(index: number, group: number, call: number): string {
    return `${index},${this.#quotient.family(group)},${call}`;
  }
}

const NO_MESSAGES: readonly Content[] = [];
