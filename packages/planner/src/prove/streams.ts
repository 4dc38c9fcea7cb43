import { dtypeBytes } from "@mosaic/core";
import type { AttentionRecord } from "../record.ts";
import type { View } from "../symbolic/strided-layout.ts";
import type { Reader } from "../symbolic/tape.ts";
import { Batch } from "./batch.ts";
import type { Content } from "./content.ts";
import { exchange } from "./exchange.ts";
import { overlapsItself } from "./overlaps.ts";
import { Queue } from "./queue.ts";
import type { StreamMeans } from "./stream-means.ts";

/** One half of a message whose rank's turn has come, while the other half's has not. */
interface Half {
  readonly batch: Batch;
  readonly view: number;
  /** What is sent. */
  readonly message: Content | undefined;
}

/** The messages from one rank to another in one group; they meet in order, so that only one side ever waits. */
interface Channel {
  readonly sends: Queue<Half>;
  readonly receives: Queue<Half>;
}

/** The ranks of a group that have come to one of its collectives, by rank in the group. */
interface Meeting {
  readonly batches: (Batch | undefined)[];
  missing: number;
}

/**
 * Neighbours mostly wait for one another only, so they can go on for a while without the rest: what a cache holds of a few
 * ranks is used many times before others push it out.
 */
const NEIGHBOURS = 32;

/**
 * The communication streams of all ranks. Each runs its collectives in the order of posting, one after the other; a message
 * moves when both halves have their turn. That is the strictest engine that the contract allows, so what runs here runs on any.
 */
export class Streams {
  readonly #record: AttentionRecord;
  readonly #means: StreamMeans;
  /** By rank: batches in order; the first has its turn. */
  readonly queues: readonly Queue<Batch>[];
  /** By sending rank: channels by group and receiving rank. */
  readonly #channels: Map<number, Channel>[];
  readonly #meetings: Map<number, Meeting>[];
  /** By group: the place of each world rank. */
  readonly #places: (Map<number, number> | undefined)[] = [];
  /** Batches that have their turn and have not begun: a list, for one may lead to thousands. */
  readonly #ready: Batch[] = [];
  /** By neighbourhood: ranks that may go on since somebody last looked. */
  readonly #freed: number[][];
  #here = 0;

  constructor(record: AttentionRecord, means: StreamMeans) {
    this.#record = record;
    this.#means = means;
    this.queues = record.ranks.map(() => new Queue<Batch>());
    this.#freed = Array.from({ length: Math.ceil(record.ranks.length / NEIGHBOURS) }, () => []);
    this.#channels = record.ranks.map(() => new Map<number, Channel>());
    this.#meetings = record.groups.map(() => new Map<number, Meeting>());
  }

  post(rank: number, event: Reader, phase: string): void {
    const batch = new Batch(rank, event, phase);
    const memory = this.#means.memories[rank]!;
    memory.hold(batch);
    if (overlapsItself(batch, memory, batch.op === "sendRecv" ? -1 : this.#place(batch))) {
      const message = `${this.textOf(batch)} writes where it also reads, or twice to one place: what it moves has no order`;
      this.#means.faults.report({ kind: "race", rank, message });
    }
    const queue = this.queues[rank]!;
    queue.push(batch);
    if (queue.length === 1) this.#ready.push(batch);
    for (let next = this.#ready.pop(); next !== undefined; next = this.#ready.pop()) this.#begin(next);
  }

  /** Says that a rank may go on. */
  free(rank: number): void {
    this.#freed[Math.floor(rank / NEIGHBOURS)]!.push(rank);
  }

  /** A rank that may go on, a neighbour of the last one if there is one; undefined if none may. */
  takeFree(): number | undefined {
    for (let i = 0; i < this.#freed.length; i++) {
      const rank = this.#freed[this.#here]!.pop();
      if (rank !== undefined) return rank;
      this.#here = (this.#here + 1) % this.#freed.length;
    }
    return undefined;
  }

  /** The ranks that a batch still needs. */
  peersOf(batch: Batch): number[] {
    if (batch.op !== "sendRecv") {
      const met = this.#meetings[batch.group]!.get(batch.call)?.batches ?? [];
      return this.#record.groups[batch.group]!.ranks.filter((_, place) => !met[place]);
    }
    const peers = new Set<number>();
    for (let i = 0; i < batch.uses; i++) {
      const [peer, sent] = [batch.peer(i), batch.sends(i)];
      const channel = this.#channel(batch.group, sent ? batch.rank : peer, sent ? peer : batch.rank);
      if ((sent ? channel.sends : channel.receives).some((half) => half.batch === batch)) peers.add(peer);
    }
    return [...peers];
  }

  /** As messages name it. */
  textOf({ rank, phase, label, work }: Batch): string {
    return `rank ${rank}, ${phase}, ${this.#record.names.words[label]} #${work}`;
  }

  /** A batch has its turn: it sends what its memory holds now, before anything arrives where it sends from. */
  #begin(batch: Batch): void {
    if (batch.op !== "sendRecv") {
      this.#meet(batch);
      return;
    }
    if (batch.uses === 0) this.#finish(batch);
    for (const sent of [true, false]) {
      let channel: Channel | undefined;
      let last = -1;
      for (let i = 0; i < batch.uses; i++) {
        if (batch.sends(i) !== sent) continue;
        const peer = batch.peer(i);
        // Messages to one rank mostly follow one another.
        if (peer !== last) channel = this.#channel(batch.group, sent ? batch.rank : peer, sent ? peer : batch.rank);
        last = peer;
        if (sent) this.#send(channel!, batch, batch.view(i));
        else this.#receive(channel!, batch, batch.view(i));
      }
    }
  }

  #send(channel: Channel, batch: Batch, view: number): void {
    const message = this.#means.memories[batch.rank]!.message(view);
    const other = channel.receives.shift();
    if (!other) channel.sends.push({ batch, view, message });
    else {
      this.#means.memories[other.batch.rank]!.receive(other.view, message);
      this.#met(batch, view, other.batch, other.view);
    }
  }

  #receive(channel: Channel, batch: Batch, view: number): void {
    const other = channel.sends.shift();
    if (!other) channel.receives.push({ batch, view, message: undefined });
    else {
      this.#means.memories[batch.rank]!.receive(view, other.message!);
      this.#met(other.batch, other.view, batch, view);
    }
  }

  /** Both halves of a message have met. */
  #met(sending: Batch, sent: number, receiving: Batch, received: number): void {
    const a = this.#means.memories[sending.rank]!.view(sent);
    const b = this.#means.memories[receiving.rank]!.view(received);
    if (a.layout.size !== b.layout.size || a.dtype !== b.dtype) {
      const bytes = ({ layout, dtype }: View): string => `${layout.size * dtypeBytes[dtype]} bytes of ${dtype}`;
      const sizes = `sends ${bytes(a)}, ${this.textOf(receiving)} expects ${bytes(b)}`;
      const message = `${this.textOf(sending)} to rank ${receiving.rank} ${sizes}`;
      this.#means.faults.report({ kind: "message", rank: sending.rank, message });
    }
    if (--sending.open === 0) this.#finish(sending);
    if (--receiving.open === 0) this.#finish(receiving);
  }

  /** The last to come to a collective carries it out. */
  #meet(batch: Batch): void {
    const { ranks } = this.#record.groups[batch.group]!;
    const meetings = this.#meetings[batch.group]!;
    let meeting = meetings.get(batch.call);
    if (!meeting) {
      meeting = { batches: ranks.map(() => undefined), missing: ranks.length };
      meetings.set(batch.call, meeting);
    }
    meeting.batches[this.#place(batch)] = batch;
    if (--meeting.missing > 0) return;
    meetings.delete(batch.call);
    const batches = meeting.batches as Batch[];
    const odd = batches.find(({ op }) => op !== batch.op);
    const problem = odd
      ? `${this.textOf(odd)} is ${odd.op} where ${this.textOf(batch)} is ${batch.op}`
      : exchange(batches, this.#means);
    if (problem) this.#means.faults.report({ kind: "message", rank: (odd ?? batch).rank, message: problem });
    for (const each of batches) this.#finish(each);
  }

  /** The next of the rank has its turn. */
  #finish(batch: Batch): void {
    batch.isDone = true;
    const queue = this.queues[batch.rank]!;
    queue.shift();
    this.free(batch.rank);
    const next = queue.first;
    if (next) this.#ready.push(next);
  }

  #channel(group: number, from: number, to: number): Channel {
    const channels = this.#channels[from]!;
    const name = group * this.queues.length + to;
    let channel = channels.get(name);
    if (!channel) channels.set(name, (channel = { sends: new Queue<Half>(), receives: new Queue<Half>() }));
    return channel;
  }

  #place({ group, rank }: Batch): number {
    const places = (this.#places[group] ??= new Map(this.#record.groups[group]!.ranks.map((each, i) => [each, i])));
    return places.get(rank)!;
  }
}
