import type { Quotient } from "../classes/quotient.ts";
import type { Batch } from "./batch.ts";
import type { Content } from "./content.ts";

/** What a representative brought to a collective. */
export interface Joined {
  readonly batch: Batch;
  readonly input: Content;
}

/** From which world rank to which. */
export interface Ends {
  readonly from: number;
  readonly to: number;
}

/**
 * All that representatives sent, as they had it in memory: what any rank sends is what its representative sends, translated. A
 * message is found by its ends, whichever ranks of their classes these are, and its number among those between them.
 */
export class Journal {
  readonly #quotient: Quotient;
  readonly #sent: Map<number, Content[]>[] = [];
  readonly #joined = new Map<string, Joined>();

  constructor(quotient: Quotient) {
    this.#quotient = quotient;
  }

  /** A message within a group. */
  send(group: number, { from, to }: Ends, message: Content): void {
    const { sender, key } = this.#quotient.channel(this.#quotient.family(group), from, to);
    const sent = (this.#sent[sender] ??= new Map<number, Content[]>());
    const messages = sent.get(key);
    if (messages) messages.push(message);
    else sent.set(key, [message]);
  }

  /** The messages from one rank of a group to another, in order, as the representative of the one sent them. */
  sent(group: number, { from, to }: Ends): readonly Content[] {
    const { sender, key } = this.#quotient.channel(this.#quotient.family(group), from, to);
    return this.#sent[sender]?.get(key) ?? none;
  }

  /** A representative joins a collective of a group. */
  join(batch: Batch, input: Content): void {
    this.#joined.set(this.#nameOf(batch.index, batch.group, batch.call), { batch, input });
  }

  /** What the representative of a rank brought to the call of that number in its group of the same family. */
  joined(rank: number, group: number, call: number): Joined | undefined {
    return this.#joined.get(this.#nameOf(this.#quotient.index(rank), group, call));
  }

  #nameOf(index: number, group: number, call: number): string {
    return `${index},${this.#quotient.family(group)},${call}`;
  }
}

const none: readonly Content[] = [];
