import { dtypeBytes } from "@mosaic/core";
import { Quotient } from "../symmetry/quotient.ts";
import type { AttentionRecord } from "../record.ts";
import type { View } from "../symbolic/strided-layout.ts";
import { isBatch, type TapeReader } from "../symbolic/tape.ts";
import { PostedBatch } from "./batch.ts";
import { type Content, uninitialized } from "./content.ts";
import type { ReplayContext } from "./context.ts";
import { runCollective, createMember } from "./collective.ts";
import type { MessageLog } from "./message-log.ts";
import { overlapsItself } from "./overlaps.ts";
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

  some(is: (item: T) => boolean): boolean {
    for (let i = this.#begin; i < this.#end; i++) if (is(this.#items[i]!)) return true;
    return false;
  }
}

/** One half of a message whose rank's turn has come, while the other half's has not. */
interface PostedTransfer {
  readonly batch: PostedBatch;
  /** World rank of the other side, and the view that is sent or written. */
  readonly peer: number;
  readonly view: number;
  /** What is sent. */
  readonly message: Content | undefined;
}

/** The messages from one rank to another in one group; they meet in order, so that only one side ever waits. */
interface Channel {
  readonly sends: Queue<PostedTransfer>;
  readonly receives: Queue<PostedTransfer>;
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
  /** By number of the sending rank. */
  readonly #channels: Map<number, Channel>[];
  /** By group, or all groups that are translations of one. */
  readonly #pendingCollectives = new Map<number, Map<number, PendingCollective>>();
  /** Batches that have their turn and have not begun: a list, for one may lead to thousands. */
  readonly #ready: PostedBatch[] = [];
  /** By rank and group: casts posted. */
  readonly #casts = new Map<number, number>();
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
    this.#channels = record.ranks.map(() => new Map<number, Channel>());
  }

  /** A rank, by its number, has come to where it posts a collective. */
  post(index: number, event: TapeReader, phase: string): void {
    const { rank } = this.#record.ranks[index]!.tape;
    const batch = new PostedBatch(rank, index, event, phase);
    const memory = this.#context.memories[index]!;
    memory.acquire(batch);
    if (overlapsItself(batch, memory, isBatch(batch.op) ? -1 : this.#quotient.place(batch.group, rank))) {
      const message = `${this.describe(batch)} writes where it also reads, or twice to one place: what it moves has no order`;
      this.#context.violations.report({ kind: "race", rank, message });
    }
    if (batch.op === "groupCast" || batch.op === "groupReduce") {
      const key = index * this.#record.groups.length + batch.group;
      batch.cast = (this.#casts.get(key) ?? 0) + 1;
      this.#casts.set(key, batch.cast);
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
    for (let i = 0; i < batch.uses; i++) {
      const [peer, sent] = [batch.peer(i), batch.sends(i)];
      const channel = sent ? this.#channel(family, batch.rank, peer) : this.#channel(family, peer, batch.rank);
      const open = (sent ? channel.sends : channel.receives).some((half) => half.batch === batch && half.peer === peer);
      if (open) peers.add(peer);
    }
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
    if (batch.uses === 0) this.#finish(batch);
    const { family } = this.#record.groups[batch.group]!;
    for (const sent of [true, false]) {
      let channel: Channel | undefined;
      let last = -1;
      for (let i = 0; i < batch.uses; i++) {
        if (batch.sends(i) !== sent) continue;
        const peer = batch.peer(i);
        // Messages to one rank mostly follow one another.
        if (peer !== last) {
          channel = sent ? this.#channel(family, batch.rank, peer) : this.#channel(family, peer, batch.rank);
        }
        last = peer;
        if (sent) this.#send(channel!, batch, i);
        else this.#receive(channel!, batch, i);
      }
    }
  }

  #send(channel: Channel, batch: PostedBatch, i: number): void {
    const [peer, view] = [batch.peer(i), batch.view(i)];
    const message = this.#context.memories[batch.index]!.message(view);
    this.#context.messageLog?.addMessage(batch.group, { from: batch.rank, to: peer }, message);
    const half = { batch, peer, view, message };
    const other = channel.receives.shift();
    if (!other) channel.sends.push(half);
    else this.#deliver(half, other);
  }

  #receive(channel: Channel, batch: PostedBatch, i: number): void {
    const half = { batch, peer: batch.peer(i), view: batch.view(i), message: undefined };
    const other = channel.sends.shift();
    if (!other) channel.receives.push(half);
    else this.#deliver(other, half);
  }

  /** Both halves of a message have met: it arrives as the receiver's peer sends it, whose representative the sender is. */
  #deliver(send: PostedTransfer, receive: PostedTransfer): void {
    const { memories, relabeling, record } = this.#context;
    const [sending, receiving] = [send.batch, receive.batch];
    const message = relabeling.content(send.message!, record.classes.translationTo(receive.peer));
    memories[receiving.index]!.receive(receive.view, message);
    const a = memories[sending.index]!.view(send.view);
    const b = memories[receiving.index]!.view(receive.view);
    if (a.layout.size !== b.layout.size || a.dtype !== b.dtype) {
      const bytes = ({ layout, dtype }: View): string => `${layout.size * dtypeBytes[dtype]} bytes of ${dtype}`;
      const sizes = `sends ${bytes(a)}, ${this.describe(receiving)} expects ${bytes(b)}`;
      const text = `${this.describe(sending)} to rank ${send.peer} ${sizes}`;
      this.#context.violations.report({ kind: "message", rank: sending.rank, message: text });
    }
    if (sending.cast !== receiving.cast || sending.op !== receiving.op) {
      const text = `${this.describe(receiving)} receives from rank ${receive.peer} what ${this.describe(sending)} sends in another ${sending.op}`;
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
      ? `${this.describe(mismatched)} is ${mismatched.op} where ${this.describe(batch)} is ${batch.op}`
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
        .map(({ rank }) => this.#quotient.place(group, rank));
      const problem = runCollective({ members, receivers }, this.#context);
      if (problem) return problem;
    }
    return undefined;
  }

  /** The next of the rank has its turn. */
  #finish(batch: PostedBatch): void {
    batch.isDone = true;
    const queue = this.queues[batch.index]!;
    queue.shift();
    this.makeRunnable(batch.index);
    const next = queue.first;
    if (next) this.#ready.push(next);
  }

  #channel(family: number, from: number, to: number): Channel {
    const { sender, key } = this.#quotient.channel(family, from, to);
    const channels = this.#channels[sender]!;
    let channel = channels.get(key);
    if (!channel)
      channels.set(key, (channel = { sends: new Queue<PostedTransfer>(), receives: new Queue<PostedTransfer>() }));
    return channel;
  }
}
