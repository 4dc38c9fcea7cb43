import { dtypeBytes, MosaicError } from "@mosaic/core";
import type { AttentionRecord } from "../record.ts";
import type { Op, Reader } from "../symbolic/tape.ts";
import { bytesOf } from "./kernel-time.ts";
import { latencyOf, type Part, trafficOf } from "./collective.ts";
import type { Machine } from "./machine.ts";
import type { Profile } from "./profile.ts";

/** A collective that a rank posted. */
export class Batch {
  readonly rank: number;
  readonly work: number;
  readonly op: Op;
  readonly group: number;
  readonly label: string;
  /** When it had its turn. */
  start = 0;
  /** Messages, and stretches of them under way, that are not through. */
  open = 0;
  bytesSent = 0;
  bytesReceived = 0;
  readonly #code: Int32Array;
  readonly #first: number;
  readonly #count: number;

  constructor(rank: number, event: Reader, words: readonly string[]) {
    this.rank = rank;
    this.work = event.arg(0);
    this.op = event.op;
    this.group = event.arg(1);
    this.label = words[event.arg(2)]!;
    this.#code = event.code;
    this.#first = event.at + 3;
    this.#count = event.count - 3;
  }

  /** How many arguments follow the label, and each of them: see `ops`. */
  get count(): number {
    return this.#count;
  }

  arg(i: number): number {
    return this.#code[this.#first + i]!;
  }
}

/** Messages between two batches that move together. */
export interface Flow {
  readonly from: Batch;
  readonly to: Batch;
  count: number;
  bytes: number;
}

/** All ranks of a collective, at once: how many loads are not through. */
export interface Meeting {
  readonly members: readonly Batch[];
  loads: number;
}

interface Half {
  readonly batch: Batch;
  readonly bytes: number;
}

/** Messages of one way between two ranks of a group whose other halves are not there yet. */
interface Channel {
  readonly sends: Half[];
  readonly receives: Half[];
}

/**
 * The communication streams of all ranks: each runs its collectives in the order of posting; a message moves when both sides
 * have their turn. The same rules as those that `prove` follows, with time.
 */
export class Streams {
  readonly #record: AttentionRecord;
  readonly #profile: Profile;
  readonly #machine: Machine;
  readonly #finished: (batch: Batch) => void;
  readonly #queues = new Map<number, Batch[]>();
  /** By the rank that sends, then by group and the rank that receives. */
  readonly #channels: readonly Map<number, Channel>[];
  readonly #meetings = new Map<string, Batch[]>();
  readonly #sizes: readonly number[][];

  // oxlint-disable-next-line max-params -- what it stands between
  constructor(record: AttentionRecord, profile: Profile, machine: Machine, finished: (batch: Batch) => void) {
    this.#record = record;
    this.#profile = profile;
    this.#machine = machine;
    this.#finished = finished;
    this.#channels = record.ranks.map(() => new Map<number, Channel>());
    this.#sizes = record.ranks.map(() => []);
  }

  /** Compute has come to where a collective was posted. */
  post(rank: number, event: Reader): void {
    const batch = new Batch(rank, event, this.#record.names.words);
    const queue = this.#queueOf(batch);
    queue.push(batch);
    if (queue.length === 1) this.#begin(batch);
  }

  /** Messages are through. */
  arrived({ from, to, count, bytes }: Flow): void {
    from.bytesSent += bytes;
    to.bytesReceived += bytes;
    this.#close(from, count);
    this.#close(to, count);
  }

  /** A load of a collective is through; with the last one it is done everywhere. */
  loaded(meeting: Meeting): void {
    if (--meeting.loads > 0) return;
    for (const member of meeting.members) this.#finish(member);
  }

  /** Collectives that have their turn and are not done. */
  *pending(): Generator<Batch, void, undefined> {
    for (const [head] of this.#queues.values()) if (head) yield head;
  }

  #queueOf({ rank, group }: Batch): Batch[] {
    const key = this.#profile.channels === "group" ? rank * this.#record.groups.length + group : rank;
    let queue = this.#queues.get(key);
    if (!queue) this.#queues.set(key, (queue = []));
    return queue;
  }

  #begin(batch: Batch): void {
    batch.start = this.#machine.now;
    if (batch.op !== "sendRecv") return this.#meet(batch);
    const { rank, group, count } = batch;
    batch.open = count / 3;
    if (batch.open === 0) return this.#finish(batch);
    const flows: Flow[] = [];
    for (let i = 0; i < count; i += 3) {
      const peer = batch.arg(i);
      const bytes = this.#bytes(rank, batch.arg(i + 2));
      if (batch.arg(i + 1) === 1) {
        const channel = this.#channel(group, rank, peer);
        const other = channel.receives.shift();
        if (!other) channel.sends.push({ batch, bytes });
        else addTo(flows, { from: batch, to: other.batch, bytes, expected: other.bytes });
      } else {
        const channel = this.#channel(group, peer, rank);
        const other = channel.sends.shift();
        if (!other) channel.receives.push({ batch, bytes });
        else addTo(flows, { from: other.batch, to: batch, bytes: other.bytes, expected: bytes });
      }
    }
    for (const flow of flows) {
      this.#machine.send({ from: flow.from.rank, to: flow.to.rank, bytes: flow.bytes, owner: flow });
    }
  }

  /** The last to come to a collective sets it going. */
  #meet(batch: Batch): void {
    const { ranks } = this.#record.groups[batch.group]!;
    const name = `${batch.group},${batch.arg(0)}`;
    const met = this.#meetings.get(name) ?? [];
    met.push(batch);
    this.#meetings.set(name, met);
    if (met.length < ranks.length) return;
    this.#meetings.delete(name);
    const members = ranks.map((rank) => met.find((each) => each.rank === rank)!);
    const odd = members.find(({ op }) => op !== batch.op);
    if (odd) {
      throw refusal(
        `rank ${odd.rank}, ${odd.label} #${odd.work} is ${odd.op}, where rank ${batch.rank}'s is ${batch.op}`,
      );
    }
    const { loads, steps } = trafficOf(
      this.#profile,
      ranks,
      members.map((each) => this.#part(each)),
    );
    const meeting: Meeting = { members, loads: loads.length + 1 };
    for (const { from, to, bytes } of loads) {
      members[ranks.indexOf(from)]!.bytesSent += bytes;
      members[ranks.indexOf(to)]!.bytesReceived += bytes;
      this.#machine.send({ from, to, bytes, owner: meeting });
    }
    // Loads have one latency; a ring has as many as steps.
    this.#machine.timer(batch.rank, this.#machine.now + steps * latencyOf(this.#profile, ranks), meeting);
  }

  #part(batch: Batch): Part {
    const { rank, op, count } = batch;
    const view = batch.arg(2) >= 0 ? batch.arg(2) : batch.arg(1);
    const whole = view >= 0 ? this.#record.ranks[rank]!.tape.views[view]! : undefined;
    const counts = Array.from({ length: count - 4 }, (_, i) => batch.arg(4 + i));
    return {
      op,
      root: batch.arg(3),
      counts,
      size: whole?.layout.size ?? 0,
      elementBytes: whole ? dtypeBytes[whole.dtype] : 0,
    };
  }

  /** Views are many and far apart: their sizes are looked up once. */
  #bytes(rank: number, view: number): number {
    const known = this.#sizes[rank]!;
    return (known[view] ??= bytesOf(this.#record.ranks[rank]!.tape.views[view]!));
  }

  #close(batch: Batch, count: number): void {
    batch.open -= count;
    if (batch.open === 0) this.#finish(batch);
  }

  /** The next of the rank has its turn. */
  #finish(batch: Batch): void {
    const queue = this.#queueOf(batch);
    queue.shift();
    const [next] = queue;
    // Before the rank hears of it: what it posts then comes after.
    if (next) this.#begin(next);
    this.#finished(batch);
  }

  #channel(group: number, from: number, to: number): Channel {
    const known = this.#channels[from]!;
    const name = group * this.#channels.length + to;
    let channel = known.get(name);
    if (!channel) known.set(name, (channel = { sends: [], receives: [] }));
    return channel;
  }
}

interface Matched {
  readonly from: Batch;
  readonly to: Batch;
  readonly bytes: number;
  /** What the receiver believes. */
  readonly expected: number;
}

/** Adds a message to the flow of its two batches. */
function addTo(flows: Flow[], { from, to, bytes, expected }: Matched): void {
  if (bytes !== expected) {
    const where = `rank ${from.rank}, ${from.label} #${from.work} sends ${bytes} bytes to rank ${to.rank}`;
    throw refusal(`${where}, whose ${to.label} #${to.work} expects ${expected}`);
  }
  const last = flows.at(-1);
  if (last && last.from === from && last.to === to) {
    last.count++;
    last.bytes += bytes;
  } else flows.push({ from, to, count: 1, bytes });
}

/** Why a record cannot be timed. */
export function refusal(reason: string): MosaicError {
  return new MosaicError({
    where: "simulate",
    expected: "a record that comes to its end",
    received: reason,
    remedy: "prove(record) says what is wrong with it",
  });
}
