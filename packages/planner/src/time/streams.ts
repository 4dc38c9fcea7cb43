import { dtypeBytes, MosaicError } from "@mosaic/core";
import { Quotient } from "../symmetry/quotient.ts";
import type { AttentionRecord } from "../record.ts";
import { isBatch, type TapeOp, type TapeReader } from "../symbolic/tape.ts";
import type { CollectiveSizes } from "../collective-messages.ts";
import { collectiveTraffic } from "./collective.ts";
import type { MachineSimulator } from "./machine.ts";
import { linkClass, type Profile } from "./profile.ts";

/** A collective that a rank posted. */
export class PostedCollective {
  readonly rank: number;
  /** Index of the rank in the record. */
  readonly index: number;
  readonly workId: number;
  readonly op: TapeOp;
  readonly group: number;
  readonly label: string;
  /** Time when it began. */
  start = 0;
  /** Number of messages that are not complete. */
  numPendingTransfers = 0;
  bytesSent = 0;
  bytesReceived = 0;
  readonly #code: Int32Array;
  readonly #firstArgumentIndex: number;
  readonly #argumentCount: number;

  // oxlint-disable-next-line max-params -- its rank, its event, and the strings of labels
  constructor(rank: number, index: number, event: TapeReader, labels: readonly string[]) {
    this.rank = rank;
    this.index = index;
    this.workId = event.arg(0);
    this.op = event.op;
    this.group = event.arg(1);
    this.label = labels[event.arg(2)]!;
    this.#code = event.code;
    this.#firstArgumentIndex = event.firstArgumentIndex + 3;
    this.#argumentCount = event.count - 3;
  }

  /** Number of arguments after the label; see `tapeOps`. */
  get numArguments(): number {
    return this.#argumentCount;
  }

  arg(i: number): number {
    return this.#code[this.#firstArgumentIndex + i]!;
  }
}

/** Messages between two batches that are transferred together. */
export interface MessageFlow {
  readonly sender: PostedCollective;
  readonly receiver: PostedCollective;
  /** World rank of the receiver, as recorded by the sender. */
  readonly peer: number;
  numMessages: number;
  bytes: number;
}

/** A collective that runs on all its ranks, with its number of incomplete transfers. */
export interface RunningCollective {
  readonly members: readonly PostedCollective[];
  numPendingTransfers: number;
}

interface PostedTransfer {
  readonly batch: PostedCollective;
  readonly peer: number;
  readonly bytes: number;
}

/** Messages in one direction between two ranks of a group whose other halves are not posted yet. */
interface Channel {
  readonly sends: PostedTransfer[];
  readonly receives: PostedTransfer[];
  /** Messages that a starting batch has combined here so far. */
  flow: MessageFlow | undefined;
}

/**
 * The communication streams of all ranks. Each runs its collectives in posting order, and a message is transferred when
 * both sides have reached it. These are the rules of `prove`, with time.
 */
export class SimulatedStreams {
  readonly #record: AttentionRecord;
  readonly #quotient: Quotient;
  readonly #profile: Profile;
  readonly #machine: MachineSimulator;
  readonly #onFinished: (batch: PostedCollective) => void;
  readonly #queues = new Map<number, PostedCollective[]>();
  /** By sending rank, then by family of groups and receiving rank. */
  readonly #channels: readonly Map<number, Channel>[];
  readonly #pendingCollectives = new Map<string, PostedCollective[]>();

  // oxlint-disable-next-line max-params -- what is run, on which machine, and who is notified
  constructor(
    record: AttentionRecord,
    profile: Profile,
    machine: MachineSimulator,
    onFinished: (batch: PostedCollective) => void,
  ) {
    this.#record = record;
    this.#quotient = new Quotient(record);
    this.#profile = profile;
    this.#machine = machine;
    this.#onFinished = onFinished;
    this.#channels = record.ranks.map(() => new Map<number, Channel>());
  }

  /** Posts a collective that compute has reached; `index` is that of the rank in the record. */
  post(index: number, event: TapeReader): void {
    const { rank } = this.#record.ranks[index]!.tape;
    const batch = new PostedCollective(rank, index, event, this.#record.interned.strings);
    const queue = this.#getQueue(batch);
    queue.push(batch);
    if (queue.length === 1) this.#beginBatch(batch);
  }

  /** Called when messages have been transferred. */
  onFlowDone({ sender: from, receiver: to, numMessages: count, bytes }: MessageFlow): void {
    from.bytesSent += bytes;
    to.bytesReceived += bytes;
    this.#countDown(from, count);
    this.#countDown(to, count);
  }

  /** Called when a transfer of a collective is complete. The last one completes the collective on all ranks. */
  endTransfer(collective: RunningCollective): void {
    if (--collective.numPendingTransfers > 0) return;
    for (const member of collective.members) this.#finish(member);
  }

  /** Yields the collectives that have begun and are not done. */
  *activeCollectives(): Generator<PostedCollective, void, undefined> {
    for (const [collective] of this.#queues.values()) if (collective) yield collective;
  }

  #getQueue({ index, group }: PostedCollective): PostedCollective[] {
    const key = this.#profile.channels === "group" ? index * this.#record.groups.length + group : index;
    let queue = this.#queues.get(key);
    if (!queue) this.#queues.set(key, (queue = []));
    return queue;
  }

  #beginBatch(batch: PostedCollective): void {
    batch.start = this.#machine.now;
    if (!isBatch(batch.op)) return this.#joinCollective(batch);
    const { rank, index, group, numArguments: count } = batch;
    batch.numPendingTransfers = count / 3;
    if (batch.numPendingTransfers === 0) return this.#finish(batch);
    const { family } = this.#record.groups[group]!;
    const { viewBytes } = this.#record.ranks[index]!.tape;
    const channels: Channel[] = [];
    for (let i = 0; i < count; i += 3) {
      const postedTransfer = { batch, peer: batch.arg(i), bytes: viewBytes[batch.arg(i + 2)]! };
      const isSend = batch.arg(i + 1) === 1;
      const channel = isSend
        ? this.#channel(family, rank, postedTransfer.peer)
        : this.#channel(family, postedTransfer.peer, rank);
      const matchedTransfer = (isSend ? channel.receives : channel.sends).shift();
      if (!matchedTransfer) (isSend ? channel.sends : channel.receives).push(postedTransfer);
      else if (isSend) this.#addToFlow(channel, postedTransfer, matchedTransfer);
      else this.#addToFlow(channel, matchedTransfer, postedTransfer);
      channels.push(channel);
    }
    for (const channel of channels) this.#startFlow(channel);
  }

  /** Adds a matched message to those that are transferred with it, between the same two batches. */
  #addToFlow(channel: Channel, send: PostedTransfer, receive: PostedTransfer): void {
    if (send.bytes !== receive.bytes) throw createSizeMismatchError(send, receive);
    const { flow } = channel;
    if (flow?.sender === send.batch && flow.receiver === receive.batch) {
      flow.numMessages++;
      flow.bytes += send.bytes;
      return;
    }
    this.#startFlow(channel);
    channel.flow = { sender: send.batch, receiver: receive.batch, peer: send.peer, numMessages: 1, bytes: send.bytes };
  }

  #startFlow(channel: Channel): void {
    const { flow } = channel;
    if (!flow) return;
    channel.flow = undefined;
    const { sender: from, receiver: to, peer, bytes } = flow;
    const link = linkClass(this.#profile, from.rank, peer);
    this.#machine.send({ senderIndex: from.index, receiverIndex: to.index, link, bytes, owner: flow });
  }

  /** Adds a rank to a collective. The last rank to join starts it. */
  #joinCollective(batch: PostedCollective): void {
    const key = `${this.#quotient.orbit(batch.group)},${batch.arg(0)}`;
    const postedMembers = this.#pendingCollectives.get(key) ?? [];
    postedMembers.push(batch);
    this.#pendingCollectives.set(key, postedMembers);
    if (postedMembers.length < this.#quotient.groupClasses(batch.group).length) return;
    this.#pendingCollectives.delete(key);
    const mismatchedMember = postedMembers.find(({ op }) => op !== batch.op);
    if (mismatchedMember) {
      throw createSimulationError(
        `rank ${mismatchedMember.rank} posted ${mismatchedMember.op} as ${mismatchedMember.label} #${mismatchedMember.workId}, but rank ${batch.rank} posted ${batch.op}`,
      );
    }
    const memberByIndex = new Map(postedMembers.map((postedMember) => [postedMember.index, postedMember]));
    const runningCollective: RunningCollective = { members: postedMembers, numPendingTransfers: 1 };
    let latency = 0;
    for (const member of postedMembers) {
      const { ranks } = this.#record.groups[member.group]!;
      const traffic = collectiveTraffic(
        this.#profile,
        ranks,
        ranks.indexOf(member.rank),
        this.#collectiveArguments(member),
      );
      ({ latency } = traffic);
      for (const { peerRank, bytes } of traffic.transfers) {
        const index = this.#quotient.representativeIndex(peerRank);
        member.bytesSent += bytes;
        memberByIndex.get(index)!.bytesReceived += bytes;
        runningCollective.numPendingTransfers++;
        const link = linkClass(this.#profile, member.rank, peerRank);
        this.#machine.send({ senderIndex: member.index, receiverIndex: index, link, bytes, owner: runningCollective });
      }
    }
    // Transfers have one latency; a ring has one for each step.
    this.#machine.startTimer(batch.index, this.#machine.now + latency, runningCollective);
  }

  #collectiveArguments(batch: PostedCollective): CollectiveSizes {
    const { index, op, numArguments: count } = batch;
    const viewId = batch.arg(2) >= 0 ? batch.arg(2) : batch.arg(1);
    const tensorView = viewId >= 0 ? this.#record.ranks[index]!.tape.views[viewId]! : undefined;
    const counts = Array.from({ length: count - 4 }, (_, i) => batch.arg(4 + i));
    return {
      op,
      root: batch.arg(3),
      counts,
      size: tensorView?.layout.size ?? 0,
      elementBytes: tensorView ? dtypeBytes[tensorView.dtype] : 0,
    };
  }

  #countDown(batch: PostedCollective, count: number): void {
    batch.numPendingTransfers -= count;
    if (batch.numPendingTransfers === 0) this.#finish(batch);
  }

  /** Ends a collective and starts the next one of the rank. */
  #finish(batch: PostedCollective): void {
    const queue = this.#getQueue(batch);
    queue.shift();
    const [next] = queue;
    // Started before the rank is notified, so that what the rank posts then comes after.
    if (next) this.#beginBatch(next);
    this.#onFinished(batch);
  }

  #channel(family: number, senderRank: number, receiverRank: number): Channel {
    const { sender, key } = this.#quotient.channel(family, senderRank, receiverRank);
    const senderChannels = this.#channels[sender]!;
    let channel = senderChannels.get(key);
    if (!channel) senderChannels.set(key, (channel = { sends: [], receives: [], flow: undefined }));
    return channel;
  }
}

function createSizeMismatchError(
  { batch: sender, bytes }: PostedTransfer,
  { batch: receiver, bytes: expectedBytes }: PostedTransfer,
): MosaicError {
  const transferName = `rank ${sender.rank}, ${sender.label} #${sender.workId} sends ${bytes} bytes to rank ${receiver.rank}`;
  return createSimulationError(
    `${transferName}, but its ${receiver.label} #${receiver.workId} expects ${expectedBytes} bytes`,
  );
}

/** Creates the error for a record that cannot be timed. */
export function createSimulationError(reason: string): MosaicError {
  return new MosaicError({
    where: "simulate",
    expected: "a record without deadlocks, mismatched sends or mismatched collectives",
    received: reason,
    remedy: "call prove(record) to list the violations",
  });
}
