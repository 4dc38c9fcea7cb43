import { isEquivalent } from "../symmetry/equivalence.ts";
import { Quotient } from "../symmetry/quotient.ts";
import type { AttentionRecord, RecordedRank } from "../record.ts";
import { isBatch, type TapeReader } from "../symbolic/tape.ts";
import { PostedBatch } from "./batch.ts";
import { areEqualBoxes } from "./box.ts";
import { type Content, uninitializedContent, type Region } from "./content.ts";
import { SumCompleteness } from "./completeness.ts";
import { Violations, type ReplayContext, createVerifierContext } from "./context.ts";
import { haveEqualRows } from "./entries.ts";
import { mergeRows } from "./arrivals.ts";
import { runCollective, createMember } from "./collective.ts";
import { MessageLog } from "./message-log.ts";
import { overlapsItself } from "./overlaps.ts";
import type { PositionList } from "./positions.ts";
import { RankMemory } from "./rank-memory.ts";
import { createInitialMemory, Replay } from "./replay.ts";
import { checkResults } from "./results.ts";
import { type Addend, EMPTY_SUM } from "./sums.ts";
import { haveSameKind, isDelta, isSum, decodePayload, type MemoryValue } from "./values.ts";

/** A completed proof of representatives. */
export interface RepresentativesProof {
  readonly context: ReplayContext;
  readonly quotient: Quotient;
  /** Messages of the representatives. Their memories are by index. */
  readonly messageLog: MessageLog;
  readonly memories: readonly RankMemory[];
}

/**
 * Replays one more rank, alone, on the messages that it receives if all ranks behave like their representatives, and
 * checks that it behaves likewise: the same operations in the same order, and the same rows and sums, translated, in
 * every message. If this holds for every rank, then every message of a full replay is the expected one, by induction on
 * the order of messages. The rank's own violations are reported to the context. Returns a description of the first
 * difference, if any.
 */
export function checkRank(recordedRank: RecordedRank, classProof: RepresentativesProof): string | undefined {
  const { context, quotient } = classProof;
  const { record } = context;
  const { rank } = recordedRank.tape;
  const representative = record.ranks[quotient.representativeIndex(rank)]!;
  const comparison = { record, translations: quotient.classes, pairs: undefined };
  const rankName = `rank ${rank}`;
  const representativeName = `rank ${representative.tape.rank}, the representative of its equivalence class`;
  if (!isEquivalent(representative, recordedRank, comparison))
    return `${rankName}: the operations do not match those of ${representativeName}`;
  const memory = createInitialMemory(record, recordedRank, context.positions);
  const streams = new SingleRankStreams(recordedRank, memory, classProof, new RepresentativeExchange(classProof));
  const replay = new Replay(context, recordedRank, { index: 0, memory, streams });
  replay.run();
  if (streams.difference)
    return `${rankName}, ${streams.difference}: the rows sent do not match those of ${representativeName}`;
  if (!replay.hasEnded) return `${rankName} does not run to completion, unlike ${representativeName}`;
  checkResults(context, recordedRank, memory);
  return undefined;
}

/**
 * Returns whether candidates send what the only rank of the record sends, translated: rows of inputs, and what is
 * computed from these. Nothing is received, so values computed from received data are not compared. This is a first
 * check before ranks are assumed to be of one class.
 */
export function haveEqualMessages(
  expected: RecordedRank,
  candidates: readonly RecordedRank[],
  record: AttentionRecord,
): boolean {
  const violations = new Violations(0);
  const verifier = createVerifierContext(record);
  const context = { ...verifier, violations, completeness: new SumCompleteness(verifier) };
  const quotient = new Quotient(record);
  const messageLog = new MessageLog(quotient);
  const replayRank = (
    recordedRank: RecordedRank,
    createExchange: (memory: RankMemory) => PeerExchange,
  ): SingleRankStreams => {
    const memory = createInitialMemory(record, recordedRank, context.positions);
    const streams = new SingleRankStreams(
      recordedRank,
      memory,
      { context, quotient, messageLog, memories: [] },
      createExchange(memory),
    );
    new Replay(context, recordedRank, { index: 0, memory, streams }).run();
    return streams;
  };
  replayRank(expected, () => new LoggingExchange(messageLog));
  return candidates.every((candidate) => replayRank(candidate, () => emptyExchange).difference === undefined);
}

/** Collectives of a rank whose peers are not replayed. */
interface PeerExchange {
  /** Whether sent contents are compared with the log. If not, `send` and `joinCollective` record them. */
  readonly comparesSentContents: boolean;
  send(batch: PostedBatch, receiverRank: number, content: Content): void;
  joinCollective(batch: PostedBatch, input: Content): void;
  /** Returns the message with this index from a rank. */
  receive(batch: PostedBatch, senderRank: number, messageIndex: number): Content;
  /** Runs a collective for the rank. */
  runCollective(batch: PostedBatch, memory: RankMemory, input: Content): void;
}

/** Receives nothing. */
const emptyExchange: PeerExchange = {
  comparesSentContents: true,
  send() {},
  joinCollective() {},
  receive: () => uninitializedContent,
  runCollective() {},
};

/** Logs what is sent; receives nothing. */
class LoggingExchange implements PeerExchange {
  readonly comparesSentContents = false;
  readonly #log: MessageLog;

  constructor(messageLog: MessageLog) {
    this.#log = messageLog;
  }

  send({ rank, group }: PostedBatch, receiverRank: number, content: Content): void {
    this.#log.addMessage(group, { senderRank: rank, receiverRank }, content);
  }

  joinCollective(batch: PostedBatch, input: Content): void {
    this.#log.addCollectiveInput(batch, input);
  }

  receive(): Content {
    return uninitializedContent;
  }

  runCollective(): void {}
}

/** Receives what arrives if all ranks behave like their representatives. */
class RepresentativeExchange implements PeerExchange {
  readonly comparesSentContents = true;
  readonly #classProof: RepresentativesProof;

  constructor(classProof: RepresentativesProof) {
    this.#classProof = classProof;
  }

  send(): void {}

  joinCollective(): void {}

  receive({ rank, group }: PostedBatch, senderRank: number, messageIndex: number): Content {
    const { context, messageLog, quotient } = this.#classProof;
    const message =
      messageLog.messages(group, { senderRank, receiverRank: rank })[messageIndex] ?? uninitializedContent;
    return context.relabeling.translateContent(message, quotient.classes.translationTo(senderRank));
  }

  runCollective(batch: PostedBatch, memory: RankMemory, input: Content): void {
    const { quotient, context, messageLog, memories } = this.#classProof;
    const { group, call, rank } = batch;
    const groupRank = quotient.groupRank(group, rank);
    const members = context.record.groups[group]!.ranks.map((memberRank) => {
      const memberInput = messageLog.collectiveInput(memberRank, group, call)!;
      return createMember(quotient, memberRank, group, { ...memberInput, memory: memories[memberInput.batch.index]! });
    });
    members[groupRank] = {
      batch,
      memory,
      input,
      translation: 0,
      toRepresentativeIndex: (i) => i,
      fromRepresentativeIndex: (i) => i,
    };
    runCollective({ members, receivers: [groupRank] }, context);
  }
}

/** Communication stream of a rank whose peers are not replayed. What it posts is done at once. */
class SingleRankStreams {
  /** Location at which the rank first sent something unexpected. */
  difference: string | undefined;
  readonly #recordedRank: RecordedRank;
  readonly #memory: RankMemory;
  readonly #classProof: RepresentativesProof;
  readonly #peers: PeerExchange;
  readonly #comparison: ContentComparison;
  /** Number of messages so far in each direction, by family and peer. */
  readonly #messageCounts = { sent: new Map<number, number>(), received: new Map<number, number>() };

  // oxlint-disable-next-line max-params -- a rank and its peers
  constructor(recordedRank: RecordedRank, memory: RankMemory, classProof: RepresentativesProof, peers: PeerExchange) {
    this.#recordedRank = recordedRank;
    this.#memory = memory;
    this.#classProof = classProof;
    this.#peers = peers;
    this.#comparison = new ContentComparison(classProof.context);
  }

  post(_: number, event: TapeReader, phase: string): void {
    const { quotient, context } = this.#classProof;
    const { rank } = this.#recordedRank.tape;
    const batch = new PostedBatch(this.#recordedRank.tape, quotient.representativeIndex(rank), event, phase);
    this.#memory.acquire(batch);
    const groupRank = isBatch(batch.op) ? -1 : quotient.groupRank(batch.group, rank);
    if (overlapsItself(batch, this.#memory, groupRank)) {
      const message = `rank ${rank}, ${phase}: a collective writes to memory that it also reads, or writes twice to the same memory range`;
      context.violations.report({ kind: "race", rank, message });
    }
    if (isBatch(batch.op)) this.#checkTransfers(batch);
    else this.#checkCollective(batch);
    batch.isDone = true;
  }

  #checkTransfers(batch: PostedBatch): void {
    const { context, messageLog, quotient } = this.#classProof;
    const { rank, group } = batch;
    for (let i = 0; i < batch.viewCount; i++) {
      if (!batch.isSend(i)) continue;
      const receiverRank = batch.peer(i);
      const content = this.#memory.message(batch.viewId(i));
      const messageIndex = this.#nextMessageIndex("sent", group, receiverRank);
      this.#peers.send(batch, receiverRank, content);
      if (!this.#peers.comparesSentContents) continue;
      const expected = messageLog.messages(group, { senderRank: rank, receiverRank })[messageIndex];
      this.#compareContents(
        batch,
        content,
        expected && context.relabeling.translateContent(expected, quotient.classes.translationTo(rank)),
      );
    }
    for (let i = 0; i < batch.viewCount; i++) {
      if (batch.isSend(i)) continue;
      const senderRank = batch.peer(i);
      this.#memory.receive(
        batch.viewId(i),
        this.#peers.receive(batch, senderRank, this.#nextMessageIndex("received", group, senderRank)),
      );
    }
  }

  #nextMessageIndex(direction: "sent" | "received", group: number, peer: number): number {
    const counts = this.#messageCounts[direction];
    const key = this.#classProof.quotient.family(group) * this.#classProof.quotient.size + peer;
    const count = counts.get(key) ?? 0;
    counts.set(key, count + 1);
    return count;
  }

  /** Compares the rank's data for each member with its representative's data for the corresponding member. */
  #checkCollective(batch: PostedBatch): void {
    const { quotient, context, messageLog, memories } = this.#classProof;
    const { group, call, rank } = batch;
    const input = batch.inputView < 0 ? uninitializedContent : this.#memory.message(batch.inputView);
    this.#peers.joinCollective(batch, input);
    const representativeInput = this.#peers.comparesSentContents
      ? messageLog.collectiveInput(rank, group, call)
      : undefined;
    if (representativeInput) {
      const { length } = context.record.groups[group]!.ranks;
      const expected = createMember(quotient, rank, group, {
        ...representativeInput,
        memory: memories[representativeInput.batch.index]!,
      });
      for (const [from, end, start] of shareRanges(
        batch,
        representativeInput.batch,
        length,
        expected.toRepresentativeIndex,
      )) {
        const translatedInput = context.relabeling.translateContent(
          representativeInput.input.range(from, end),
          expected.translation,
        );
        this.#compareContents(batch, input.range(start, start + end - from), translatedInput);
      }
    }
    this.#peers.runCollective(batch, this.#memory, input);
  }

  #compareContents(batch: PostedBatch, content: Content, expected: Content | undefined): void {
    if (this.difference !== undefined || (expected && this.#comparison.areEqualContents(content, expected))) return;
    this.difference = `${batch.phase}, ${this.#classProof.context.record.interned.strings[batch.labelId]} #${batch.workId}`;
  }
}

/**
 * Yields the ranges of a collective's input for each member: start and end in the representative's input, and start in
 * the rank's.
 */
// oxlint-disable-next-line max-params -- two inputs, and the mapping of members
function* shareRanges(
  batch: PostedBatch,
  expected: PostedBatch,
  size: number,
  memberIndex: (i: number) => number,
): Generator<readonly [number, number, number], void, undefined> {
  if (batch.op !== "allToAll" && batch.op !== "reduceScatter") {
    yield [0, Number.POSITIVE_INFINITY, 0];
    return;
  }
  const shareOffsets = new Float64Array(size + 1);
  for (let i = 0; i < size; i++) shareOffsets[i + 1] = shareOffsets[i]! + expected.counts[i]!;
  let start = 0;
  for (let i = 0; i < size; i++) {
    const shareIndex = memberIndex(i);
    yield [shareOffsets[shareIndex]!, shareOffsets[shareIndex + 1]!, start];
    start += batch.counts[i]!;
  }
}

/** Maximum number of tiles that are compared where sums are not obviously equal. */
const MAX_COMPARED_TILES = 2 ** 24;

/** Compares contents of memory. Sums are equal if they are of the same tiles, in any order. */
class ContentComparison {
  readonly #context: ReplayContext;
  /** Numbers of the sorted position lists, because tiles may have positions in any order. */
  readonly #sortedIds = new Map<PositionList, number>();
  #numRemainingTiles = MAX_COMPARED_TILES;

  constructor(context: ReplayContext) {
    this.#context = context;
  }

  areEqualContents(a: Content, b: Content): boolean {
    if (a === b) return true;
    if (a.regions.length === 1 && b.regions.length === 1) return this.#areEqualRegions(a.regions[0]!, b.regions[0]!);
    // Rows that arrived in one batch may form one region, whereas the same rows received in another way do not.
    const [regionsA, regionsB] = [mergeRows(sortByOffset(a.regions)), mergeRows(sortByOffset(b.regions))];
    return (
      regionsA.length === regionsB.length && regionsA.every((region, i) => this.#areEqualRegions(region, regionsB[i]!))
    );
  }

  #areEqualRegions(a: Region, b: Region): boolean {
    return (
      areEqualBoxes(a.box, b.box) &&
      this.#areEqualValues(a.value, b.value) &&
      (a.rows === b.rows || haveEqualRows(a.rows, b.rows))
    );
  }

  #areEqualValues(a: MemoryValue, b: MemoryValue): boolean {
    if (a === b) return true;
    if (!haveSameKind(a, b) || !(isSum(a) || isDelta(a))) return false;
    return this.#areEqualSums(decodePayload(a), decodePayload(b));
  }

  /** Most sums are chains of tiles in which all but a few tiles form the same sum, translated. */
  #areEqualSums(a: number, b: number): boolean {
    const { sums, relabeling } = this.#context;
    const { translations } = relabeling;
    const pendingPairs = [{ a, b, ta: 0, tb: 0 }];
    for (let next = pendingPairs.pop(); next !== undefined; next = pendingPairs.pop()) {
      const [originA, originB] = [sums.origin(next.a), sums.origin(next.b)];
      const ta = translations.apply(next.ta, originA.translation);
      const tb = translations.apply(next.tb, originB.translation);
      if (originA.sum === originB.sum && (ta === tb || originA.sum === EMPTY_SUM)) continue;
      const [x, y] = [sums.lastAddition(originA.sum), sums.lastAddition(originB.sum)];
      if (!x || !y || (x.tile === undefined) !== (y.tile === undefined)) return this.#areEqualTiles(a, b);
      if (x.tile !== undefined) {
        const isSameTile =
          this.#tileKey({ tile: x.tile, translation: ta }) === this.#tileKey({ tile: y.tile!, translation: tb });
        if (!isSameTile) return this.#areEqualTiles(a, b);
      } else pendingPairs.push({ a: x.right!, b: y.right!, ta, tb });
      pendingPairs.push({ a: x.left, b: y.left, ta, tb });
    }
    return true;
  }

  #areEqualTiles(a: number, b: number): boolean {
    const { sums } = this.#context;
    const [addendsA, addendsB] = [sums.listAddends(a), sums.listAddends(b)];
    this.#numRemainingTiles -= addendsA.length + addendsB.length;
    if (addendsA.length !== addendsB.length || this.#numRemainingTiles < 0) return false;
    const sortTileKeys = (addends: readonly Addend[]): string[] =>
      addends.map((addend) => this.#tileKey(addend)).toSorted();
    const keysB = sortTileKeys(addendsB);
    return sortTileKeys(addendsA).every((key, i) => key === keysB[i]);
  }

  #tileKey({ tile, translation }: Addend): string {
    const { tiles, relabeling } = this.#context;
    const { q, k, mask, firstHead, endHead } = tiles.get(tile);
    const queries = this.#sortedId(relabeling.translatePositions(q, "queries", translation));
    const keys = this.#sortedId(relabeling.translatePositions(k, "keys", translation));
    return `${queries},${keys},${mask},${firstHead},${endHead}`;
  }

  #sortedId(positions: PositionList): number {
    let id = this.#sortedIds.get(positions);
    if (id === undefined)
      this.#sortedIds.set(positions, (id = this.#context.positions.fromSpans(positions.sortedSpans).id));
    return id;
  }
}

function sortByOffset(regions: readonly Region[]): readonly Region[] {
  return regions.toSorted((a, b) => a.box.offset - b.box.offset);
}
