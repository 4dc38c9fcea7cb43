import type { Quotient } from "../symmetry/quotient.ts";
import type { PostedBatch } from "./batch.ts";
import type { Content } from "./content.ts";

/** Input of a representative to a collective. */
export interface CollectiveInput {
  readonly batch: PostedBatch;
  readonly input: Content;
}

/** World ranks of the sender and the receiver. */
export interface Endpoints {
  readonly senderRank: number;
  readonly receiverRank: number;
}

/**
 * All messages that representatives sent, as in their own memory. Any rank sends what its representative sends,
 * translated. A message is found by its endpoints, up to translation, and its index among those between them.
 */
export class MessageLog {
  readonly #quotient: Quotient;
  readonly #sentContents: Map<number, Content[]>[] = [];
  readonly #collectiveInputs = new Map<string, CollectiveInput>();

  constructor(quotient: Quotient) {
    this.#quotient = quotient;
  }

  /** Adds a message within a group. */
  addMessage(group: number, { senderRank: from, receiverRank: to }: Endpoints, message: Content): void {
    const { sender, key } = this.#quotient.channel(this.#quotient.family(group), from, to);
    const channels = (this.#sentContents[sender] ??= new Map<number, Content[]>());
    const messages = channels.get(key);
    if (messages) messages.push(message);
    else channels.set(key, [message]);
  }

  /** Returns the messages from one rank of a group to another, in order, as the sender's representative sent them. */
  messages(group: number, { senderRank: from, receiverRank: to }: Endpoints): readonly Content[] {
    const { sender, key } = this.#quotient.channel(this.#quotient.family(group), from, to);
    return this.#sentContents[sender]?.get(key) ?? NO_MESSAGES;
  }

  /** Adds a representative's input to a collective. */
  addCollectiveInput(batch: PostedBatch, input: Content): void {
    this.#collectiveInputs.set(this.#inputKey(batch.index, batch.group, batch.call), { batch, input });
  }

  /** Returns the input of a rank's representative to the call with this index in its group of the same family. */
  collectiveInput(rank: number, group: number, call: number): CollectiveInput | undefined {
    return this.#collectiveInputs.get(this.#inputKey(this.#quotient.representativeIndex(rank), group, call));
  }

  #inputKey(index: number, group: number, call: number): string {
    return `${index},${this.#quotient.family(group)},${call}`;
  }
}

const NO_MESSAGES: readonly Content[] = [];
