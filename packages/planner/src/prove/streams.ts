import { dtypeBytes } from "@mosaic/core";
import { Quotient } from "../symmetry/quotient.ts";
import type { AttentionRecord } from "../record.ts";
import { isBatch, type TapeReader } from "../symbolic/tape.ts";
import { PostedBatch } from "./batch.ts";
import { uninitializedContent } from "./content.ts";
import type { ReplayContext } from "./context.ts";
import { runCollective, createMember } from "./collective.ts";
import type { MessageLog } from "./message-log.ts";
import { overlapsItself } from "./overlaps.ts";
import { UnmatchedMessages } from "./unmatched-messages.ts";
import type { RankMemory } from "./rank-memory.ts";

/**
 * A first-in, first-out queue. Most hold one or two items, and millions pass through, so taking one does not move the
 * others.
 */
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

/** The ranks of a group that have reached one of its collectives, by index. */
interface PendingCollective {
  readonly batches: Map<number, PostedBatch>;
  numMissingRanks: number;
}

/**
 * Number of ranks that are replayed as a block. Neighbors mostly wait only for one another, so a block can run for a
 * while without the rest, with the data of few ranks in the cache.
 */
const RANKS_PER_BLOCK = 32;

/** Context of the streams. */
interface StreamContext extends ReplayContext {
  /** By index of the rank. */
  readonly memories: readonly RankMemory[];
  /** Log of what representatives send, for a record of classes. */
  readonly messageLog?: MessageLog;
}

/**
 * The communication streams of all ranks. Each runs its collectives in posting order, one after the other, and a
 * message is transferred when both halves are first in their queues. This is the strictest engine that the contract
 * allows, so what runs here runs on any engine.
 *
 * For a record of classes, these are the streams of the representatives. All ranks of a class advance together, so
 * that a message of a representative matches the corresponding message, up to translation, of the representative of
 * its peer.
 */
export class ReplayStreams {
  readonly #record: AttentionRecord;
  readonly #context: StreamContext;
  readonly #quotient: Quotient;
  /** By index of the rank: its batches in order. The first one is running. */
  readonly queues: readonly Queue<PostedBatch>[];
  readonly #unmatched: UnmatchedMessages;
  /** By orbit of the group and index of the call. */
  readonly #pendingCollectives = new Map<number, Map<number, PendingCollective>>();
  /**
   * Batches that are first in their queue and have not begun. This is a list, because one batch may start thousands.
   */
  readonly #readyBatches: PostedBatch[] = [];
  /** By rank and group: number of group-casts and group-reduces posted. */
  readonly #groupCollectiveCounts = new Map<number, number>();
  /** By block of ranks: the runnable ranks. */
  readonly #runnableRanks: number[][];
  #currentBlock = 0;

  constructor(context: StreamContext) {
    const { record } = context;
    this.#record = record;
    this.#context = context;
    this.#quotient = new Quotient(record);
    this.queues = record.ranks.map(() => new Queue<PostedBatch>());
    this.#runnableRanks = Array.from({ length: Math.ceil(record.ranks.length / RANKS_PER_BLOCK) }, () => []);
    this.#unmatched = new UnmatchedMessages(this.#quotient);
  }

  /** Posts a collective of the rank with this index. */
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
      batch.groupCollectiveIndex = (this.#groupCollectiveCounts.get(key) ?? 0) + 1;
      this.#groupCollectiveCounts.set(key, batch.groupCollectiveIndex);
    }
    const queue = this.queues[index]!;
    queue.push(batch);
    if (queue.length === 1) this.#readyBatches.push(batch);
    for (let next = this.#readyBatches.pop(); next !== undefined; next = this.#readyBatches.pop())
      this.#beginBatch(next);
  }

  /** Marks a rank as runnable. */
  makeRunnable(index: number): void {
    this.#runnableRanks[Math.floor(index / RANKS_PER_BLOCK)]!.push(index);
  }

  /** Takes a runnable rank, of the same block as the last one if possible; undefined if there is none. */
  takeRunnableRank(): number | undefined {
    for (let i = 0; i < this.#runnableRanks.length; i++) {
      const index = this.#runnableRanks[this.#currentBlock]!.pop();
      if (index !== undefined) return index;
      this.#currentBlock = (this.#currentBlock + 1) % this.#runnableRanks.length;
    }
    return undefined;
  }

  /** Returns the ranks that a batch still waits for. */
  pendingPeers(batch: PostedBatch): number[] {
    const { ranks, family } = this.#record.groups[batch.group]!;
    if (!isBatch(batch.op)) {
      const joinedBatches = this.#pendingCollectives.get(this.#quotient.orbit(batch.group))?.get(batch.call)?.batches;
      return ranks.filter((rank) => !joinedBatches?.has(this.#quotient.representativeIndex(rank)));
    }
    const peers = new Set<number>();
    for (let i = 0; i < batch.viewCount; i++) if (this.#unmatched.includes(family, batch, i)) peers.add(batch.peer(i));
    return [...peers];
  }

  /** Returns the index of the representative of a rank. */
  representativeIndex(rank: number): number {
    return this.#quotient.representativeIndex(rank);
  }

  /** Describes a batch for messages. */
  describe({ rank, phase, labelId: label, workId: work }: PostedBatch): string {
    return `rank ${rank}, ${phase}, ${this.#record.interned.strings[label]} #${work}`;
  }

  /**
   * Begins a batch that is first in its queue. It captures what it sends before anything is received into that memory.
   */
  #beginBatch(batch: PostedBatch): void {
    if (!isBatch(batch.op)) {
      this.#joinCollective(batch);
      return;
    }
    if (batch.viewCount === 0) this.#finish(batch);
    const memory = this.#context.memories[batch.index]!;
    batch.captureSentContents(memory);
    const { messageLog } = this.#context;
    const { family } = this.#record.groups[batch.group]!;
    for (const isSend of [true, false]) {
      for (let i = 0; i < batch.viewCount; i++) {
        if (batch.isSend(i) !== isSend) continue;
        if (isSend)
          messageLog?.addMessage(
            batch.group,
            { senderRank: batch.rank, receiverRank: batch.peer(i) },
            memory.message(batch.viewId(i)),
          );
        if (!this.#unmatched.matchOrEnqueue(family, batch, i)) continue;
        const { matchedBatch, matchedMessage } = this.#unmatched;
        if (isSend) this.#deliver(batch, i, matchedBatch, matchedMessage);
        else this.#deliver(matchedBatch, matchedMessage, batch, i);
      }
    }
  }

  /**
   * Delivers a message whose halves have met. It is translated to the receiver's peer, whose representative the sender
   * is.
   */
  // oxlint-disable-next-line max-params -- two messages by batch and index; too many to create an object for each
  #deliver(sender: PostedBatch, i: number, receiver: PostedBatch, j: number): void {
    const { relabeling, record } = this.#context;
    const haveEqualSizes = sender.size(i) === receiver.size(j);
    const translation = record.classes.isIdentity ? 0 : record.classes.translationTo(receiver.peer(j));
    // If the sizes differ, the received contents are unknown.
    if (!haveEqualSizes) receiver.setSource(j, uninitializedContent, 0);
    else if (translation === 0) receiver.setSource(j, sender.source(i), sender.low(i));
    else receiver.setSource(j, relabeling.translateContent(sender.sentMessage(i), translation), 0);
    if (!haveEqualSizes || sender.dtype(i) !== receiver.dtype(j)) {
      const bytes = (batch: PostedBatch, k: number): string =>
        `${batch.size(k) * dtypeBytes[batch.dtype(k)]} bytes of ${batch.dtype(k)}`;
      const sizes = `sends ${bytes(sender, i)}, ${this.describe(receiver)} expects ${bytes(receiver, j)}`;
      const text = `${this.describe(sender)} to rank ${sender.peer(i)} ${sizes}`;
      this.#context.violations.report({ kind: "message", rank: sender.rank, message: text });
    }
    if (sender.groupCollectiveIndex !== receiver.groupCollectiveIndex || sender.op !== receiver.op) {
      const text =
        `mismatched collectives: ${this.describe(sender)} sends to rank ${sender.peer(i)} in a ${sender.op}; ` +
        `${this.describe(receiver)} receives it in ${receiver.op === sender.op ? "a different" : "a"} ${receiver.op}`;
      this.#context.violations.report({ kind: "message", rank: receiver.rank, message: text });
    }
    if (--sender.numUnmatchedMessages === 0) this.#finish(sender);
    if (--receiver.numUnmatchedMessages === 0) this.#finish(receiver);
  }

  /** Adds a rank to a collective. The last rank to join runs it. */
  #joinCollective(batch: PostedBatch): void {
    const orbit = this.#quotient.orbit(batch.group);
    let collectivesByCall = this.#pendingCollectives.get(orbit);
    if (!collectivesByCall)
      this.#pendingCollectives.set(orbit, (collectivesByCall = new Map<number, PendingCollective>()));
    let collective = collectivesByCall.get(batch.call);
    if (!collective) {
      const numMissingRanks = this.#quotient.groupClasses(batch.group).length;
      collectivesByCall.set(batch.call, (collective = { batches: new Map<number, PostedBatch>(), numMissingRanks }));
    }
    collective.batches.set(batch.index, batch);
    if (--collective.numMissingRanks > 0) return;
    collectivesByCall.delete(batch.call);
    const { ranks } = this.#record.groups[batch.group]!;
    const batchList = [
      ...new Set(ranks.map((rank) => collective.batches.get(this.#quotient.representativeIndex(rank))!)),
    ];
    const mismatchedBatch = batchList.find(({ op }) => op !== batch.op);
    const mismatch = mismatchedBatch
      ? `operation mismatch: ${this.describe(mismatchedBatch)} is ${mismatchedBatch.op}, ${this.describe(batch)} is ${batch.op}`
      : this.#runCollective(collective.batches, batchList);
    if (mismatch)
      this.#context.violations.report({ kind: "message", rank: (mismatchedBatch ?? batch).rank, message: mismatch });
    for (const joinedBatch of batchList) this.#finish(joinedBatch);
  }

  /**
   * Runs a collective once for each group whose ranks have met. Of groups that are translations of one, these are the
   * groups of the recorded ranks.
   */
  #runCollective(batches: ReadonlyMap<number, PostedBatch>, batchList: readonly PostedBatch[]): string | undefined {
    const { memories, messageLog } = this.#context;
    const inputs = new Map(
      batchList.map((batch) => [
        batch,
        batch.inputView < 0 ? uninitializedContent : memories[batch.index]!.message(batch.inputView),
      ]),
    );
    for (const [batch, input] of inputs) messageLog?.addCollectiveInput(batch, input);
    for (const group of new Set(batchList.map((each) => each.group))) {
      const { ranks } = this.#record.groups[group]!;
      const members = ranks.map((rank) => {
        const batch = batches.get(this.#quotient.representativeIndex(rank))!;
        return createMember(this.#quotient, rank, group, {
          batch,
          memory: memories[batch.index]!,
          input: inputs.get(batch)!,
        });
      });
      const receivers = batchList
        .filter((each) => each.group === group)
        .map(({ rank }) => this.#quotient.groupRank(group, rank));
      const mismatch = runCollective({ members, receivers }, this.#context);
      if (mismatch) return mismatch;
    }
    return undefined;
  }

  /** Ends a batch and starts the next one of the rank. */
  #finish(batch: PostedBatch): void {
    batch.isDone = true;
    if (isBatch(batch.op)) this.#context.memories[batch.index]!.addArrivedBatch(batch);
    const queue = this.queues[batch.index]!;
    queue.shift();
    this.makeRunnable(batch.index);
    const next = queue.first;
    if (next) this.#readyBatches.push(next);
  }
}
