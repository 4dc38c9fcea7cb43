import { dtypeBytes } from "@mosaic/core";
import { CollectiveMessages } from "./collective-messages.ts";
import { type AttentionRecord, checkRecord, type RecordedRank } from "./record.ts";
import { isBatch, isCollective, type TapeReader } from "./symbolic/tape.ts";

/** Traffic in one direction. */
export interface TrafficTotals {
  readonly bytes: number;
  readonly elements: number;
  readonly messages: number;
}

/**
 * Data that one rank sends to other ranks and receives from them in one phase: in total and by group name. The name is
 * that of the mesh axis, or `world` if the axis contains all ranks. As in `traffic()` of a group, messages to the rank
 * itself do not count.
 */
export interface RankTraffic {
  readonly sent: TrafficTotals;
  readonly received: TrafficTotals;
  readonly groups: Readonly<Record<string, { readonly sent: TrafficTotals; readonly received: TrafficTotals }>>;
}

/** Traffic volumes of a record. */
export interface TrafficCount {
  readonly ranks: readonly { readonly forward: RankTraffic; readonly backward: RankTraffic }[];
  /**
   * Elements in an equal share of one sequence's queries, B·H·(tokens / ranks of a sequence)·D: the unit used in the
   * papers.
   */
  readonly chunk: number;
}

/**
 * Counts what the ranks of a record send and receive. A collective counts as the messages of its direct form:
 * allGather, allToAll and broadcast send every share to each of its receivers; reduceScatter sends every share but the
 * local one; allReduce is a reduceScatter and an allGather. If the record has `hosts` and several ranks share one,
 * allGather and broadcast send a share to each other host once, and a rank there forwards it.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { masks, zigzag } from "@mosaic/core";
 * import { count, record } from "@mosaic/planner";
 * const sizes = { tokens: 64, numHeads: 2, headDim: 8, mask: masks.causal(), placement: zigzag() };
 * const { ranks } = count(record({ backend: ring(), mesh: { sp: 4 }, ...sizes }));
 * ranks[1]!.forward.sent.messages; // => 6
 * ```
 */
export function count(record: AttentionRecord): TrafficCount {
  checkRecord("count", record);
  const { batch, numHeads, headDim, backend, mesh } = record.options;
  const groupSize = backend.axes.reduce((product, axis) => product * mesh[axis]!, 1);
  const ranks = record.ranks.map((recordedRank) => countRankTraffic(record, recordedRank));
  return { ranks, chunk: (batch * numHeads * record.queries.length * headDim) / groupSize };
}

interface MutableTotals {
  bytes: number;
  elements: number;
  messages: number;
}

interface MutableTraffic {
  readonly sent: MutableTotals;
  readonly received: MutableTotals;
}

function createEmptyTraffic(): MutableTraffic {
  return { sent: { bytes: 0, elements: 0, messages: 0 }, received: { bytes: 0, elements: 0, messages: 0 } };
}

function countRankTraffic(record: AttentionRecord, recordedRank: RecordedRank): TrafficCount["ranks"][number] {
  const trafficByPhase = { forward: new Map<string, MutableTraffic>(), backward: new Map<string, MutableTraffic>() };
  const groupMessages = new GroupMessages(record, record.options.hosts);
  let phase: Message["phase"] = "forward";
  const event = recordedRank.tape.read();
  while (event.next()) {
    if (event.op === "mark" && record.interned.strings[event.arg(0)] === "backward") phase = "backward";
    if (!isCollective(event.op)) continue;
    const { name } = record.groups[event.arg(1)]!;
    let totals = trafficByPhase[phase].get(name);
    if (!totals) trafficByPhase[phase].set(name, (totals = createEmptyTraffic()));
    if (isBatch(event.op)) {
      addBatch(totals, recordedRank, event);
      continue;
    }
    for (const { isSent, elements, bytes } of eventTransfers(groupMessages, recordedRank, event) ?? []) {
      addTraffic(isSent ? totals.sent : totals.received, elements, bytes);
    }
  }
  return { forward: totalTraffic(trafficByPhase.forward), backward: totalTraffic(trafficByPhase.backward) };
}

/** Adds the messages of a batch. There are millions of them, too many to create an object for each. */
function addBatch(totals: MutableTraffic, { tape }: RecordedRank, event: TapeReader): void {
  for (let i = 3; i < event.count; i += 3) {
    if (event.arg(i) === tape.rank) continue;
    const { layout, bytes } = tape.views[event.arg(i + 2)]!;
    addTraffic(event.arg(i + 1) === 1 ? totals.sent : totals.received, layout.size, bytes);
  }
}

function addTraffic(totals: MutableTotals, elements: number, bytes: number): void {
  totals.elements += elements;
  totals.bytes += bytes;
  totals.messages++;
}

/** One message of one rank. */
export interface Message {
  readonly phase: "forward" | "backward";
  /** Number of the message's group. */
  readonly group: number;
  /** World rank of the peer. */
  readonly peer: number;
  readonly isSent: boolean;
  readonly elements: number;
  readonly bytes: number;
}

/**
 * Yields all messages of a rank in posting order. Collectives count as in `count`, for ranks on `hosts`, which has the
 * host of each rank.
 */
export function* listMessages(
  record: AttentionRecord,
  recordedRank: RecordedRank,
  hosts: readonly number[] | undefined = record.options.hosts,
): Generator<Message, void, undefined> {
  const groupMessages = new GroupMessages(record, hosts);
  let phase: Message["phase"] = "forward";
  const event = recordedRank.tape.read();
  while (event.next()) {
    if (event.op === "mark" && record.interned.strings[event.arg(0)] === "backward") phase = "backward";
    const group = event.arg(1);
    for (const transfer of eventTransfers(groupMessages, recordedRank, event) ?? [])
      yield { phase, group, ...transfer };
  }
}

/** The ranks of groups, and the messages of their collectives. */
class GroupMessages {
  readonly #record: AttentionRecord;
  readonly #hosts: readonly number[] | undefined;
  readonly #messagesByGroup = new Map<number, CollectiveMessages>();

  constructor(record: AttentionRecord, hosts: readonly number[] | undefined) {
    this.#record = record;
    this.#hosts = hosts;
  }

  /** Returns the world ranks of a group. */
  ranks(group: number): readonly number[] {
    return this.#record.groups[group]!.ranks;
  }

  get(group: number): CollectiveMessages {
    let messages = this.#messagesByGroup.get(group);
    if (!messages) {
      const ranks = this.ranks(group);
      const hosts = this.#hosts && ranks.map((rank) => this.#hosts![rank]!);
      this.#messagesByGroup.set(group, (messages = new CollectiveMessages(ranks.length, hosts)));
    }
    return messages;
  }
}

type Transfer = Omit<Message, "phase" | "group">;

/** Returns the messages of an event, or undefined if it is not a collective. */
function eventTransfers(
  groupMessages: GroupMessages,
  { tape }: RecordedRank,
  event: TapeReader,
): Transfer[] | undefined {
  if (isBatch(event.op)) {
    const transfers: Transfer[] = [];
    for (let i = 3; i < event.count; i += 3) {
      const { layout, bytes } = tape.views[event.arg(i + 2)]!;
      transfers.push({ isSent: event.arg(i + 1) === 1, peer: event.arg(i), elements: layout.size, bytes });
    }
    return transfers;
  }
  if (!isCollective(event.op)) return undefined;
  const out = tape.views[event.arg(4)];
  if (!out) return []; // a barrier
  const group = event.arg(1);
  const ranks = groupMessages.ranks(group);
  const elementBytes = dtypeBytes[out.dtype];
  const counts = Array.from({ length: event.count - 7 }, (_, i) => event.arg(7 + i));
  const sizes = { op: event.op, root: event.arg(6), counts, size: out.layout.size, elementBytes };
  return groupMessages
    .get(group)
    .ofMember(ranks.indexOf(tape.rank), sizes)
    .map(({ peer, isSent, elements }) => ({ isSent, peer: ranks[peer]!, elements, bytes: elements * elementBytes }));
}

function totalTraffic(trafficByGroup: ReadonlyMap<string, MutableTraffic>): RankTraffic {
  const total = createEmptyTraffic();
  for (const group of trafficByGroup.values()) {
    for (const direction of ["sent", "received"] as const) {
      total[direction].bytes += group[direction].bytes;
      total[direction].elements += group[direction].elements;
      total[direction].messages += group[direction].messages;
    }
  }
  return { ...total, groups: Object.fromEntries(trafficByGroup) };
}
