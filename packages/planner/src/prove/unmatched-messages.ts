import type { Quotient } from "../symmetry/quotient.ts";
import type { PostedBatch } from "./batch.ts";

/** Number that represents no entry. */
const NO_ENTRY = 0;

/** Fields of an entry: the next entry of its channel, and the index of the message in its batch. */
const FIELDS_PER_ENTRY = 2;

/**
 * Sends and receives that have begun, and whose other half has not. Messages from one rank to another in one group
 * match in order, so each such channel has either pending sends or pending receives. A thousand ranks that cast to one
 * another have a million channels and as many entries, so each takes only a few numbers.
 */
export class UnmatchedMessages {
  readonly #quotient: Quotient;
  /** By sender and family of groups: for each receiver, its first and last entry. */
  readonly #channels: (Int32Array | undefined)[][] = [];
  #fields = new Int32Array(FIELDS_PER_ENTRY * 256);
  readonly #batches: (PostedBatch | undefined)[] = [undefined];
  /** First entry of the free list. */
  #firstFreeEntry = NO_ENTRY;
  /** The entry that `matchOrEnqueue` found. */
  matchedBatch!: PostedBatch;
  matchedMessage = 0;

  constructor(quotient: Quotient) {
    this.#quotient = quotient;
  }

  /**
   * Returns whether the other half of a batch's message is pending. If so, it is removed, and is `matchedMessage` of
   * `matchedBatch`. If not, this half is added.
   */
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

  /** Whether the half of a batch's message is pending. */
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

  /** Frees an entry. Returns the next one of its channel. */
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

  /**
   * Returns the offset of a message in the channels of its sender: by the receiver, relative to the sender's
   * representative.
   */
  #channelOffset(batch: PostedBatch, i: number): number {
    const [sender, peer] = [batch.rank, batch.peer(i)];
    return 2 * (batch.isSend(i) ? this.#quotient.receiver(sender, peer) : this.#quotient.receiver(peer, sender));
  }
}
