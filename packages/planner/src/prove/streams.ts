import { dtypeBytes } from "@mosaic/core";
import type { AttentionRecord } from "../record.ts";
import type { View } from "../symbolic/rank-record.ts";
import type { Reader } from "../symbolic/tape.ts";
import { type Batch, batchText, meetingOf, type Transfer, usesOf } from "./batch.ts";
import type { Content } from "./content.ts";
import { exchange } from "./exchange.ts";
import type { Faults } from "./fault.ts";
import type { RankMemory } from "./rank-memory.ts";

/** One half of a message whose rank's turn has come. */
interface Half {
  readonly batch: Batch;
  readonly transfer: Transfer;
  /** What is sent. */
  readonly message: Content | undefined;
}

/** The messages from one rank to another in one group; they meet in order. */
interface Channel {
  readonly sends: Half[];
  readonly receives: Half[];
}

/**
 * The communication streams of all ranks. Each runs its collectives in the order of posting, one after the other; a message
 * moves when both halves have their turn. That is the strictest engine that the contract allows, so what runs here runs on any.
 */
export class Streams {
  readonly #record: AttentionRecord;
  readonly #memories: readonly RankMemory[];
  readonly #faults: Faults;
  /** By rank: batches in order; the first has its turn. */
  readonly queues: Batch[][];
  readonly #channels = new Map<number, Channel>();
  readonly #meetings = new Map<string, Batch[]>();
  readonly #done: Set<number>[];
  /** Batches that have their turn and have not begun: a list, for one may lead to thousands. */
  readonly #ready: Batch[] = [];
  /** Ranks that may go on since somebody last looked. */
  readonly freed: number[] = [];

  constructor(record: AttentionRecord, memories: readonly RankMemory[], faults: Faults) {
    this.#record = record;
    this.#memories = memories;
    this.#faults = faults;
    this.queues = record.ranks.map(() => []);
    this.#done = record.ranks.map(() => new Set<number>());
  }

  post(rank: number, event: Reader, phase: string): void {
    const batch = this.#batch(rank, event, phase);
    this.#memories[rank]!.hold(batch.work, usesOf(batch));
    const queue = this.queues[rank]!;
    queue.push(batch);
    if (queue.length === 1) this.#ready.push(batch);
    for (let next = this.#ready.pop(); next !== undefined; next = this.#ready.pop()) this.#begin(next);
  }

  /** Whether a collective is done; to be asked until it says so, once. */
  takeDone(rank: number, work: number): boolean {
    return this.#done[rank]!.delete(work);
  }

  /** The ranks that a batch still needs. */
  peersOf(batch: Batch): number[] {
    if (batch.op !== "sendRecv") {
      const met = this.#meetings.get(meetingOf(batch)) ?? [];
      return this.#record.groups[batch.group]!.ranks.filter((rank) => !met.some((other) => other.rank === rank));
    }
    const waiting = batch.transfers.filter(({ peer, sent }) => {
      const channel = this.#channel(batch.group, sent ? batch.rank : peer, sent ? peer : batch.rank);
      return (sent ? channel.sends : channel.receives).some((half) => half.batch === batch);
    });
    return [...new Set(waiting.map(({ peer }) => peer))];
  }

  #batch(rank: number, event: Reader, phase: string): Batch {
    const { op } = event;
    const transfers: Transfer[] = [];
    const args: number[] = [];
    if (op === "sendRecv") {
      for (let i = 3; i < event.count; i += 3) {
        transfers.push({ peer: event.arg(i), sent: event.arg(i + 1) === 1, view: event.arg(i + 2) });
      }
    } else for (let i = 3; i < event.count; i++) args.push(event.arg(i));
    const label = this.#record.names.words[event.arg(2)]!;
    const open = transfers.length;
    return { rank, work: event.arg(0), op, group: event.arg(1), label, phase, transfers, args, open };
  }

  /** A batch has its turn: it sends what its memory holds now. */
  #begin(batch: Batch): void {
    if (batch.op !== "sendRecv") {
      this.#meet(batch);
      return;
    }
    if (batch.open === 0) {
      this.#finish(batch);
      return;
    }
    const memory = this.#memories[batch.rank]!;
    // All is taken before anything arrives: a batch may receive where it sends from.
    const halves = batch.transfers.map((transfer): Half => {
      return { batch, transfer, message: transfer.sent ? memory.message(transfer.view) : undefined };
    });
    for (const half of halves) this.#offer(half);
  }

  #offer(half: Half): void {
    const { rank, group } = half.batch;
    const { peer, sent } = half.transfer;
    const channel = this.#channel(group, sent ? rank : peer, sent ? peer : rank);
    const other = (sent ? channel.receives : channel.sends).shift();
    if (other) this.#move(sent ? half : other, sent ? other : half);
    else (sent ? channel.sends : channel.receives).push(half);
  }

  #move(send: Half, receive: Half): void {
    const a = this.#memories[send.batch.rank]!.view(send.transfer.view);
    const b = this.#memories[receive.batch.rank]!.view(receive.transfer.view);
    if (a.look.size !== b.look.size || a.dtype !== b.dtype) {
      const bytes = ({ look, dtype }: View): string => `${look.size * dtypeBytes[dtype]} bytes of ${dtype}`;
      const sizes = `sends ${bytes(a)}, ${batchText(receive.batch)} expects ${bytes(b)}`;
      this.#faults.report({
        kind: "message",
        rank: send.batch.rank,
        message: `${batchText(send.batch)} to rank ${receive.batch.rank} ${sizes}`,
      });
    }
    this.#memories[receive.batch.rank]!.receive(receive.transfer.view, send.message!);
    if (--send.batch.open === 0) this.#finish(send.batch);
    if (--receive.batch.open === 0) this.#finish(receive.batch);
  }

  /** The last to come to a collective carries it out. */
  #meet(batch: Batch): void {
    const { ranks } = this.#record.groups[batch.group]!;
    const name = meetingOf(batch);
    const met = this.#meetings.get(name) ?? [];
    met.push(batch);
    this.#meetings.set(name, met);
    if (met.length < ranks.length) return;
    this.#meetings.delete(name);
    const ordered = ranks.map((rank) => met.find((each) => each.rank === rank)!);
    const odd = ordered.find(({ op }) => op !== batch.op);
    const problem = odd
      ? `${batchText(odd)} is ${odd.op} where ${batchText(batch)} is ${batch.op}`
      : exchange(ordered, this.#memories);
    if (problem) this.#faults.report({ kind: "message", rank: (odd ?? batch).rank, message: problem });
    for (const each of ordered) this.#finish(each);
  }

  /** The next of the rank has its turn. */
  #finish(batch: Batch): void {
    const { rank, work } = batch;
    this.#done[rank]!.add(work);
    const queue = this.queues[rank]!;
    queue.shift();
    this.freed.push(rank);
    const [next] = queue;
    if (next) this.#ready.push(next);
  }

  #channel(group: number, from: number, to: number): Channel {
    const name = (group * this.queues.length + from) * this.queues.length + to;
    let channel = this.#channels.get(name);
    if (!channel) this.#channels.set(name, (channel = { sends: [], receives: [] }));
    return channel;
  }
}
