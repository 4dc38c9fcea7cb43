import type { Quotient } from "../symmetry/quotient.ts";
import type { PostedBatch } from "./batch.ts";

/** The number of no half. */
const NO_ENTRY = 0;

/** Numbers of a half: the next one of its channel, and which message of its batch it is. */
const FIELDS_PER_ENTRY = 2;

/**
 * Halves of messages whose ranks have their turn while those of the other halves have not. Messages from one rank to another in one
 * group meet in order, so that in each such channel either sends wait or receives. A thousand ranks that cast to one another have a
 * million channels and as many halves, in memory of a few numbers each.
 */
export class UnmatchedMessages {
  readonly #quotient: Quotient;
  /** By sender, and family of groups: by receiver the first half that waits, and the last one. */
  readonly #channels: (Int32Array | undefined)[][] = [];
  #fields = new Int32Array(FIELDS_PER_ENTRY * 256);
  readonly #batches: (PostedBatch | undefined)[] = [undefined];
  /** The first number that is free again. */
  #firstFreeEntry = NO_ENTRY;
  /** The half that `meet` found. */
  matchedBatch!: PostedBatch;
  matchedMessage = 0;

  constructor(quotient: Quotient) {
    this.#quotient = quotient;
  }

  /** Whether the other half of a batch's message waits: it is `message` of `batch` then, and waits no more. If not, this one does. */
  matchOrEnqueue(family: number, batch: PostedBatch, i: number): boolean {
    const [channel, offset] = [this.#channel(family, batch, i), this.#channelOffset(batch, i)];
    const first = channel[offset]!;
    if (
      first !== NO_ENTRY &&
      this.#batches[first]!.isSend(this.#fields[FIELDS_PER_ENTRY * first + 1]!) !== batch.isSend(i)
    ) {
      channel[offset] = this.#removeEntry(first);
      return true;
    }
    const newEntry = this.#addEntry(batch, i);
    if (first === NO_ENTRY) channel[offset] = newEntry;
    else this.#fields[FIELDS_PER_ENTRY * channel[offset + 1]!] = newEntry;
    channel[offset + 1] = newEntry;
    return false;
  }

  /** Whether the half of a batch's message waits. */
  includes(family: number, batch: PostedBatch, i: number): boolean {
    let entry = this.#channel(family, batch, i)[this.#channelOffset(batch, i)]!;
    while (entry !== NO_ENTRY && (this.#batches[entry] !== batch || this.#fields[FIELDS_PER_ENTRY * entry + 1] !== i))
      entry = this.#fields[FIELDS_PER_ENTRY * entry]!;
    return entry !== NO_ENTRY;
  }

  #addEntry(batch: PostedBatch, i: number): number {
    let entry = this.#firstFreeEntry;
    if (entry === NO_ENTRY) entry = this.#batches.length;
    else this.#firstFreeEntry = this.#fields[FIELDS_PER_ENTRY * entry]!;
    if (FIELDS_PER_ENTRY * entry === this.#fields.length) {
      const largerFields = new Int32Array(2 * this.#fields.length);
      largerFields.set(this.#fields);
      this.#fields = largerFields;
    }
    this.#batches[entry] = batch;
    this.#fields[FIELDS_PER_ENTRY * entry] = NO_ENTRY;
    this.#fields[FIELDS_PER_ENTRY * entry + 1] = i;
    return entry;
  }

  /** Frees the number of a half; the next one of its channel. */
  #removeEntry(entry: number): number {
    const next = this.#fields[FIELDS_PER_ENTRY * entry]!;
    this.matchedBatch = this.#batches[entry]!;
    this.matchedMessage = this.#fields[FIELDS_PER_ENTRY * entry + 1]!;
    this.#batches[entry] = undefined;
    this.#fields[FIELDS_PER_ENTRY * entry] = this.#firstFreeEntry;
    this.#firstFreeEntry = entry;
    return next;
  }

  #channel(family: number, batch: PostedBatch, i: number): Int32Array {
    const sender = batch.isSend(i) ? batch.index : this.#quotient.representativeIndex(batch.peer(i));
    const families = (this.#channels[sender] ??= []);
    return (families[family] ??= new Int32Array(2 * this.#quotient.size));
  }

  /** Where in the channels of its sender a message is: by the receiver, as the sender's representative has it. */
  #channelOffset(batch: PostedBatch, i: number): number {
    const [sender, peer] = [batch.rank, batch.peer(i)];
    return 2 * (batch.isSend(i) ? this.#quotient.receiver(sender, peer) : this.#quotient.receiver(peer, sender));
  }
}
