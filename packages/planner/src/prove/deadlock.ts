import { Quotient } from "../symmetry/quotient.ts";
import type { AttentionRecord } from "../record.ts";
import { isBatch } from "../symbolic/tape.ts";
import type { PostedBatch } from "./batch.ts";
import type { Violation } from "./context.ts";
import type { ReplayStreams } from "./streams.ts";

/**
 * Returns why the remaining collectives cannot complete: messages whose other half is never posted, or else ranks that
 * wait for each other in a cycle. Returns nothing if no collectives remain.
 */
export function findDeadlock(record: AttentionRecord, streams: ReplayStreams): Violation[] {
  const queueHeads = streams.queues.map(({ first }) => first).filter((head) => head !== undefined);
  if (queueHeads.length === 0) return [];
  const unmatchedViolations = findUnmatched(record);
  if (unmatchedViolations.length > 0) return unmatchedViolations;
  const headByIndex = new Map(queueHeads.map((head) => [head.index, head]));
  const cycle = findCycle(queueHeads, (head) => blockingHeads(streams, headByIndex, head));
  if (!cycle)
    return queueHeads
      .filter((head) => blockingHeads(streams, headByIndex, head).length === 0)
      .map((head) => missingPeerViolation(streams, head));
  const waitTexts = cycle.map((head, i) => {
    const { index } = cycle[(i + 1) % cycle.length]!;
    const peer = streams.pendingPeers(head).find((rank) => streams.representativeIndex(rank) === index);
    return `${streams.describe(head)} waits for rank ${peer}`;
  });
  return [{ kind: "cycle", rank: cycle[0]!.rank, message: waitTexts.join("; ") }];
}

/**
 * Returns the first pending collectives of the ranks that one waits for, or of their representatives. A rank without
 * pending collectives has none.
 */
function blockingHeads(
  streams: ReplayStreams,
  headByIndex: ReadonlyMap<number, PostedBatch>,
  head: PostedBatch,
): PostedBatch[] {
  return streams
    .pendingPeers(head)
    .map((rank) => headByIndex.get(streams.representativeIndex(rank)))
    .filter((batch) => batch !== undefined);
}

function missingPeerViolation(streams: ReplayStreams, head: PostedBatch): Violation {
  const peers = streams.pendingPeers(head);
  const missingText = peers.length === 1 ? `rank ${peers[0]} never joins` : `ranks ${peers.join(", ")} never join`;
  return {
    kind: "message",
    rank: head.rank,
    message: `${streams.describe(head)}: ${missingText} this collective`,
  };
}

function findCycle(
  batches: readonly PostedBatch[],
  blockersOf: (batch: PostedBatch) => PostedBatch[],
): PostedBatch[] | undefined {
  const visited = new Set<PostedBatch>();
  for (const start of batches) {
    const path: { readonly batch: PostedBatch; readonly pendingBlockers: PostedBatch[] }[] = [];
    const enter = (batch: PostedBatch): void => {
      visited.add(batch);
      path.push({ batch, pendingBlockers: blockersOf(batch) });
    };
    if (!visited.has(start)) enter(start);
    while (path.length > 0) {
      const candidate = path.at(-1)!.pendingBlockers.pop();
      if (!candidate) {
        path.pop();
        continue;
      }
      const cycleStart = path.findIndex(({ batch }) => batch === candidate);
      if (cycleStart >= 0) return path.slice(cycleStart).map(({ batch }) => batch);
      if (!visited.has(candidate)) enter(candidate);
    }
  }
  return undefined;
}

interface Channel {
  readonly family: number;
  /** Index of the group-cast or group-reduce in the group, from 1; 0 for sendRecv. */
  readonly groupCollectiveIndex: number;
  readonly senderRank: number;
  readonly receiverRank: number;
  sends: number;
  receives: number;
}

/**
 * Finds, for every pair of ranks, the first message whose other half is on no tape. Messages of a group-cast match
 * those of the same group-cast and others match in order, so counting suffices.
 */
function findUnmatched(record: AttentionRecord): Violation[] {
  const quotient = new Quotient(record);
  const channels = new Map<string, Channel>();
  visitTransfers(record, ({ family, groupCollectiveIndex, senderRank, receiverRank, isSend }) => {
    const { sender, key } = quotient.channel(family, senderRank, receiverRank);
    const name = `${sender},${key},${groupCollectiveIndex}`;
    const channel = channels.get(name) ?? {
      family,
      groupCollectiveIndex,
      senderRank,
      receiverRank,
      sends: 0,
      receives: 0,
    };
    channels.set(name, channel);
    channel[isSend ? "sends" : "receives"]++;
    return false;
  });
  return [...channels.values()]
    .filter(({ sends, receives }) => sends !== receives)
    .map((each) => unmatchedViolation(record, quotient, each));
}

function unmatchedViolation(record: AttentionRecord, quotient: Quotient, channel: Channel): Violation {
  const { sends, receives } = channel;
  const isSend = sends > receives;
  const channelInfo = quotient.channel(channel.family, channel.senderRank, channel.receiverRank);
  let numMatchedToSkip = Math.min(sends, receives);
  let [rank, location, peer] = [0, "", 0];
  visitTransfers(record, (transfer) => {
    const { sender, key } = quotient.channel(transfer.family, transfer.senderRank, transfer.receiverRank);
    if (
      sender !== channelInfo.sender ||
      key !== channelInfo.key ||
      transfer.groupCollectiveIndex !== channel.groupCollectiveIndex
    )
      return false;
    if (transfer.isSend !== isSend || numMatchedToSkip-- > 0) return false;
    [rank, peer] = isSend ? [transfer.senderRank, transfer.receiverRank] : [transfer.receiverRank, transfer.senderRank];
    location = `rank ${rank}, ${transfer.phase}, ${transfer.label} #${transfer.work}`;
    return true;
  });
  const message = isSend
    ? `${location} sends to rank ${peer}, which never posts the receive`
    : `${location} receives from rank ${peer}, which never posts the send`;
  return { kind: "message", rank, message };
}

interface RecordedTransfer {
  readonly family: number;
  readonly groupCollectiveIndex: number;
  readonly senderRank: number;
  readonly receiverRank: number;
  readonly isSend: boolean;
  readonly phase: string;
  readonly label: string;
  readonly work: number;
}

/** Visits the sends and receives of all messages, rank by rank, until `visit` returns true. */
function visitTransfers(
  { ranks, groups, interned: { strings } }: AttentionRecord,
  visit: (transfer: RecordedTransfer) => boolean,
): void {
  for (const { tape } of ranks) {
    const event = tape.read();
    const groupCollectiveCounts = new Map<number, number>();
    let phase = "";
    while (event.next()) {
      if (event.op === "mark") phase = strings[event.arg(0)]!;
      if (!isBatch(event.op)) continue;
      const group = event.arg(1);
      const { family } = groups[group]!;
      const groupCollectiveIndex = event.op === "sendRecv" ? 0 : (groupCollectiveCounts.get(group) ?? 0) + 1;
      if (groupCollectiveIndex > 0) groupCollectiveCounts.set(group, groupCollectiveIndex);
      const transferInfo = { work: event.arg(0), family, groupCollectiveIndex, label: strings[event.arg(2)]!, phase };
      for (let i = 3; i < event.count; i += 3) {
        const isSend = event.arg(i + 1) === 1;
        const [senderRank, receiverRank] = isSend ? [tape.rank, event.arg(i)] : [event.arg(i), tape.rank];
        if (visit({ ...transferInfo, senderRank, receiverRank, isSend })) return;
      }
    }
  }
}
