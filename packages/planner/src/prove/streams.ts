import { dtypeBytes } from "@mosaic/core";
import { Quotient } from "../symmetry/quotient.ts";
import type { AttentionRecord } from "../record.ts";
import { isBatch, type TapeReader } from "../symbolic/tape.ts";
import { PostedBatch } from "./batch.ts";
import { uninitialized } from "./content.ts";
import type { ReplayContext } from "./context.ts";
import { runCollective, createMember } from "./collective.ts";
import type { MessageLog } from "./message-log.ts";
import { overlapsItself } from "./overlaps.ts";
import { UnmatchedMessages } from "./unmatched-messages.ts";
import type { RankMemory } from "./rank-memory.ts";

/** First in, first out. Most hold one thing or two, and millions of them pass: taking one moves none of the others. */
class Queue<T> {
  readonly #items: (T | undefined)[] = [];
  #begin = 0;
  #end = 0;

  get length(): number {
    return this.#end - this.#begin;
  }

  get first(): T | undefined {
    return this.#begin < this.#end ? this.#items[this.#begin] : undefined;
  }

  push(item: T): void {
    this.#items[this.#end++] = item;
  }

  shift(): T | undefined {
    if (this.#begin === this.#end) return undefined;
    const item = this.#items[this.#begin];
    this.#items[this.#begin++] = undefined;
    if (this.#begin === this.#end) this.#begin = this.#end = 0;
    return item;
  }
}

/** The ranks of a group that have come to one of its collectives, by number. */
interface PendingCollective {
  readonly batches: Map<number, PostedBatch>;
  missing: number;
}

/**
 * Neighbours mostly wait for one another only, so a block of them can run for a while without the rest: what a cache holds of a few
 * ranks is used many times before others push it out.
 */
const RANKS_PER_BLOCK = 32;

/** What streams work on. */
interface StreamContext extends ReplayContext {
  /** By number of the rank. */
  readonly memories: readonly RankMemory[];
  /** Where what ranks of a record of classes send is written down. */
  readonly messageLog?: MessageLog;
}

/**
 * The communication streams of all ranks. Each runs its collectives in the order of posting, one after the other; a message
 * moves when both halves have their turn. That is the strictest engine that the contract allows, so what runs here runs on any.
 *
 * Of a record of classes, the streams of the representatives: all ranks of a class go on at once, so that a message of a
 * representative meets that of the representative of its peer's class which is the same but for a translation.
 */
export class ReplayStreams {
  readonly #record: AttentionRecord;
  readonly #context: StreamContext;
  readonly #quotient: Quotient;
  /** By number of the rank: batches in order; the first has its turn. */
  readonly queues: readonly Queue<PostedBatch>[];
  readonly #unmatched: UnmatchedMessages;
  /** By group, or all groups that are translations of one. */
  readonly #pendingCollectives = new Map<number, Map<number, PendingCollective>>();
  /** Batches that have their turn and have not begun: a list, for one may lead to thousands. */
  readonly #ready: PostedBatch[] = [];
  /** By rank and group: casts posted. */
  readonly #castCounts = new Map<number, number>();
  /** By block of ranks: those that became runnable. */
  readonly #runnable: number[][];
  #block = 0;

  constructor(context: StreamContext) {
    const { record } = context;
    this.#record = record;
    this.#context = context;
    this.#quotient = new Quotient(record);
    this.queues = record.ranks.map(() => new Queue<PostedBatch>());
    this.#runnable = Array.from({ length: Math.ceil(record.ranks.length / RANKS_PER_BLOCK) }, () => []);
    this.#unmatched = new UnmatchedMessages(this.#quotient);
  }

  /** A rank, by its number, has come to where it posts a collective. */
  post(index: number, event: TapeReader, phase: string): void {
    const { tape } = this.#record.ranks[index]!;
    const { rank } = tape;
    const batch = new PostedBatch(tape, index, event, phase);
    const memory = this.#context.memories[index]!;
    memory.acquire(batch);
    if (overlapsItself(batch, memory, isBatch(batch.op) ? -1 : this.#quotient.groupRank(batch.group, rank))) {
      const message = `${this.describe(batch)} writes to memory that it also reads, or writes twice to the same memory range; the order of its messages is undefined`;
      this.#context.violations.report({ kind: "race", rank, message });
    }
    if (batch.op === "groupCast" || batch.op === "groupReduce") {
      const key = index * this.#record.groups.length + batch.group;
      batch.cast = (this.#castCounts.get(key) ?? 0) + 1;
      this.#castCounts.set(key, batch.cast);
    }
    const queue = this.queues[index]!;
    queue.push(batch);
    if (queue.length === 1) this.#ready.push(batch);
    for (let next = this.#ready.pop(); next !== undefined; next = this.#ready.pop()) this.#begin(next);
  }

  /** Marks a rank as runnable. */
  makeRunnable(index: number): void {
    this.#runnable[Math.floor(index / RANKS_PER_BLOCK)]!.push(index);
  }

  /** A runnable rank, of the same block as the last one if there is one; undefined if there is none. */
  nextRunnable(): number | undefined {
    for (let i = 0; i < this.#runnable.length; i++) {
      const index = this.#runnable[this.#block]!.pop();
      if (index !== undefined) return index;
      this.#block = (this.#block + 1) % this.#runnable.length;
    }
    return undefined;
  }

  /** The ranks that a batch still needs. */
  pendingPeers(batch: PostedBatch): number[] {
    const { ranks, family } = this.#record.groups[batch.group]!;
    if (!isBatch(batch.op)) {
      const joined = this.#pendingCollectives.get(this.#quotient.orbit(batch.group))?.get(batch.call)?.batches;
      return ranks.filter((rank) => !joined?.has(this.#quotient.index(rank)));
    }
    const peers = new Set<number>();
    for (let i = 0; i < batch.viewCount; i++) if (this.#unmatched.includes(family, batch, i)) peers.add(batch.peer(i));
    return [...peers];
  }

  /** The number of the rank that stands for another. */
  indexOf(rank: number): number {
    return this.#quotient.index(rank);
  }

  /** As messages name it. */
  describe({ rank, phase, label, work }: PostedBatch): string {
    return `rank ${rank}, ${phase}, ${this.#record.interned.strings[label]} #${work}`;
  }

  /** A batch has its turn: it sends what its memory holds now, before anything arrives where it sends from. */
  #begin(batch: PostedBatch): void {
    if (!isBatch(batch.op)) {
      this.#joinCollective(batch);
      return;
    }
    if (batch.viewCount === 0) this.#finish(batch);
    const memory = this.#context.memories[batch.index]!;
    batch.begin(memory);
    const { messageLog } = this.#context;
    const { family } = this.#record.groups[batch.group]!;
    for (const sent of [true, false]) {
      for (let i = 0; i < batch.viewCount; i++) {
        if (batch.sends(i) !== sent) continue;
        if (sent)
          messageLog?.addMessage(batch.group, { from: batch.rank, to: batch.peer(i) }, memory.message(batch.view(i)));
        if (!this.#unmatched.match(family, batch, i)) continue;
        const { batch: other, message: number } = this.#unmatched;
        if (sent) this.#deliver(batch, i, other, number);
        else this.#deliver(other, number, batch, i);
      }
    }
  }

  /** Both halves of a message have met: it arrives as the receiver's peer sends it, whose representative the sender is. */
  // oxlint-disable-next-line max-params -- message i of one batch and message j of another: millions of them, for which an object each would be made
  #deliver(sending: PostedBatch, i: number, receiving: PostedBatch, j: number): void {
    const { relabeling, record } = this.#context;
    const fits = sending.size(i) === receiving.size(j);
    const translation = record.classes.isIdentity ? 0 : record.classes.translationTo(receiving.peer(j));
    // Of a message of another size than what it fills nothing is known.
    if (!fits) receiving.receive(j, uninitialized, 0);
    else if (translation === 0) receiving.receive(j, sending.source(i), sending.low(i));
    else receiving.receive(j, relabeling.content(sending.messageSent(i), translation), 0);
    if (!fits || sending.dtype(i) !== receiving.dtype(j)) {
      const bytes = (batch: PostedBatch, k: number): string =>
        `${batch.size(k) * dtypeBytes[batch.dtype(k)]} bytes of ${batch.dtype(k)}`;
      const sizes = `sends ${bytes(sending, i)}, ${this.describe(receiving)} expects ${bytes(receiving, j)}`;
      const text = `${this.describe(sending)} to rank ${sending.peer(i)} ${sizes}`;
      this.#context.violations.report({ kind: "message", rank: sending.rank, message: text });
    }
    if (sending.cast !== receiving.cast || sending.op !== receiving.op) {
      const text =
        `mismatched collectives: ${this.describe(sending)} sends in a ${sending.op} to rank ${sending.peer(i)}, ` +
        `which receives it in ${this.describe(receiving)}, a different ${receiving.op}`;
      this.#context.violations.report({ kind: "message", rank: receiving.rank, message: text });
    }
    if (--sending.open === 0) this.#finish(sending);
    if (--receiving.open === 0) this.#finish(receiving);
  }

  /** The last to come to a collective carries it out. */
  #joinCollective(batch: PostedBatch): void {
    const orbit = this.#quotient.orbit(batch.group);
    let pending = this.#pendingCollectives.get(orbit);
    if (!pending) this.#pendingCollectives.set(orbit, (pending = new Map<number, PendingCollective>()));
    let collective = pending.get(batch.call);
    if (!collective) {
      const missing = this.#quotient.classesOf(batch.group).length;
      pending.set(batch.call, (collective = { batches: new Map<number, PostedBatch>(), missing }));
    }
    collective.batches.set(batch.index, batch);
    if (--collective.missing > 0) return;
    pending.delete(batch.call);
    const { ranks } = this.#record.groups[batch.group]!;
    const joined = [...new Set(ranks.map((rank) => collective.batches.get(this.#quotient.index(rank))!))];
    const mismatched = joined.find(({ op }) => op !== batch.op);
    const problem = mismatched
      ? `operation mismatch: ${this.describe(mismatched)} is ${mismatched.op}, ${this.describe(batch)} is ${batch.op}`
      : this.#runCollective(collective.batches, joined);
    if (problem)
      this.#context.violations.report({ kind: "message", rank: (mismatched ?? batch).rank, message: problem });
    for (const each of joined) this.#finish(each);
  }

  /** Each group whose ranks have met, once: of translations of one group, those of the ranks that were recorded. */
  #runCollective(batches: ReadonlyMap<number, PostedBatch>, joined: readonly PostedBatch[]): string | undefined {
    const { memories, messageLog } = this.#context;
    const inputs = new Map(
      joined.map((batch) => [batch, batch.input < 0 ? uninitialized : memories[batch.index]!.message(batch.input)]),
    );
    for (const [batch, input] of inputs) messageLog?.addCollectiveInput(batch, input);
    for (const group of new Set(joined.map((each) => each.group))) {
      const { ranks } = this.#record.groups[group]!;
      const members = ranks.map((rank) => {
        const batch = batches.get(this.#quotient.index(rank))!;
        return createMember(this.#quotient, rank, group, {
          batch,
          memory: memories[batch.index]!,
          input: inputs.get(batch)!,
        });
      });
      const receivers = joined
        .filter((each) => each.group === group)
        .map(({ rank }) => this.#quotient.groupRank(group, rank));
      const problem = runCollective({ members, receivers }, this.#context);
      if (problem) return problem;
    }
    return undefined;
  }

  /** The next of the rank has its turn. */
  #finish(batch: PostedBatch): void {
    batch.isDone = true;
    if (isBatch(batch.op)) this.#context.memories[batch.index]!.arrive(batch);
    const queue = this.queues[batch.index]!;
    queue.shift();
    this.makeRunnable(batch.index);
    const next = queue.first;
    if (next) this.#ready.push(next);
  }
}
