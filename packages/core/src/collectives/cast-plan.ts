import { OptionError, expectValue, formatValue } from "../errors.ts";
import type { Tensor } from "../tensor.ts";
import type { GroupCastPlan, ProcessGroup, RowRange } from "./process-group.ts";

/** Rows that a rank sends to a peer or receives from it, as ranges of the sender's input. */
export interface PeerRanges {
  readonly peer: number;
  readonly ranges: readonly RowRange[];
}

/**
 * What one rank sends and receives according to a verified plan. Peers are in ascending order; peers without rows are
 * omitted.
 */
export interface RankGroupCast {
  readonly sends: readonly PeerRanges[];
  readonly receives: readonly PeerRanges[];
  /** Number of rows that this rank receives. */
  readonly receivedRows: number;
  /** Minimum number of rows of this rank's input. */
  readonly minInputRows: number;
}

const verifiedPlans = new WeakMap<GroupCastPlan, VerifiedPlan>();

/** Returns a rank's part of a plan. The plan is verified at the first call with this plan object. */
export function rankGroupCast(
  where: string,
  plan: GroupCastPlan,
  { rank, size }: Pick<ProcessGroup, "rank" | "size">,
): RankGroupCast {
  const isValidPlan = typeof plan === "object" && plan !== null && typeof plan.ranges === "function";
  expectValue(where, isValidPlan, "a plan { size, ranges(sender, receiver) }", plan);
  if (plan.size !== size) {
    throw new OptionError({ where, expected: `a plan for ${size} ranks`, received: formatValue(plan.size) });
  }
  let verifiedPlan = verifiedPlans.get(plan);
  if (!verifiedPlan) verifiedPlans.set(plan, (verifiedPlan = new VerifiedPlan(plan)));
  return verifiedPlan.rankGroupCast(where, rank);
}

/**
 * The parts of a plan for the ranks of this process. Each pair of ranks is verified once, with the rank that calls
 * first.
 */
class VerifiedPlan {
  readonly #plan: GroupCastPlan;
  readonly #casts: (RankGroupCast | undefined)[] = [];
  /** For each rank that is not verified yet, the transfers that were already verified with its peers. */
  readonly #knownSends: (PeerRanges[] | undefined)[] = [];
  readonly #knownReceives: (PeerRanges[] | undefined)[] = [];

  constructor(plan: GroupCastPlan) {
    this.#plan = plan;
  }

  rankGroupCast(where: string, rank: number): RankGroupCast {
    return (this.#casts[rank] ??= this.#verify(where, rank));
  }

  #verify(where: string, rank: number): RankGroupCast {
    const [newSends, newReceives]: [PeerRanges[], PeerRanges[]] = [[], []];
    for (let peer = 0; peer < this.#plan.size; peer++) {
      if (this.#casts[peer]) continue;
      const sentRanges = checkRanges(where, this.#plan, rank, peer);
      const receivedRanges = checkRanges(where, this.#plan, peer, rank);
      if (sentRanges.length > 0) newSends.push({ peer, ranges: sentRanges });
      if (receivedRanges.length > 0) newReceives.push({ peer, ranges: receivedRanges });
    }
    for (const { peer, ranges } of newSends) (this.#knownReceives[peer] ??= []).push({ peer: rank, ranges });
    for (const { peer, ranges } of newReceives) (this.#knownSends[peer] ??= []).push({ peer: rank, ranges });
    const sends = mergeByPeer(this.#knownSends[rank], newSends);
    const receives = mergeByPeer(this.#knownReceives[rank], newReceives);
    this.#knownSends[rank] = this.#knownReceives[rank] = undefined;
    return {
      sends,
      receives,
      receivedRows: receives.reduce((rows, { ranges }) => rows + countRows(ranges), 0),
      minInputRows: sends.reduce((rows, { ranges }) => Math.max(rows, lastRowEnd(ranges)), 0),
    };
  }
}

function mergeByPeer(known: readonly PeerRanges[] = [], added: readonly PeerRanges[]): readonly PeerRanges[] {
  return known.length === 0 ? added : [...known, ...added].toSorted((a, b) => a.peer - b.peer);
}

/** Returns the peers after a rank, then the peers before it, so that not all ranks send to rank 0 first. */
export function inRingOrder(peerRanges: readonly PeerRanges[], rank: number): readonly PeerRanges[] {
  const first = peerRanges.findIndex(({ peer }) => peer > rank);
  return first <= 0 ? peerRanges : [...peerRanges.slice(first), ...peerRanges.slice(0, first)];
}

/**
 * Returns, for each sender, the range of its rows in a rank's output. The rows of all senders are concatenated in rank
 * order.
 */
export function locateReceivedRows({ receives }: RankGroupCast): readonly PeerRanges[] {
  let start = 0;
  return receives.map(({ peer, ranges }) => {
    const range = { start, length: countRows(ranges) };
    start += range.length;
    return { peer, ranges: [range] };
  });
}

// oxlint-disable-next-line max-params -- of which plan, from whom to whom
function checkRanges(where: string, plan: GroupCastPlan, sender: number, receiver: number): readonly RowRange[] {
  const ranges = plan.ranges(sender, receiver);
  if (Array.isArray(ranges) && ranges.length === 0) return ranges;
  const fail = (expected: string): never => {
    throw new OptionError({
      where: `${where}: plan.ranges(${sender}, ${receiver})`,
      expected,
      received: formatValue(ranges),
    });
  };
  if (!Array.isArray(ranges)) fail("an array of ranges { start, length }");
  if (sender === receiver && ranges.length > 0) fail("no ranges from a rank to itself");
  let end = 0;
  for (const range of ranges) {
    const { start, length } = (range ?? {}) as Partial<RowRange>;
    if (!isSafeCount(start) || !isSafeCount(length) || length === 0)
      fail("ranges { start, length } of integers, start ≥ 0, length ≥ 1");
    if (start! < end) fail("ranges that are ascending and disjoint");
    end = start! + length!;
  }
  return ranges;
}

function isSafeCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

/** Returns the total number of rows of ranges. */
export function countRows(ranges: readonly RowRange[]): number {
  let rows = 0;
  for (const { length } of ranges) rows += length;
  return rows;
}

function lastRowEnd(ranges: readonly RowRange[]): number {
  const { start, length } = ranges.at(-1)!;
  return start + length;
}

const planHashes = new WeakMap<GroupCastPlan, readonly [number, number]>();

/** Two 32-bit hashes over words, based on FNV-1a. */
class WordHash {
  low = 0x811c9dc5;
  high = 0x2c1b3c6d;

  add(word: number): void {
    const bits = word ^ Math.floor(word / 2 ** 32);
    this.low = Math.imul(this.low ^ bits, 0x01000193);
    this.high = Math.imul((this.high ^ bits) + 0x9e3779b9, 0x85ebca6b);
    // Multiplication propagates differences to higher bits only.
    this.low ^= this.low >>> 15;
    this.high ^= this.high >>> 13;
  }

  /** The hash as an integer of 53 bits, which a number represents exactly. */
  get value(): number {
    return (this.high >>> 11) * 2 ** 32 + (this.low >>> 0);
  }
}

/** Hashes all ranges of a plan. Computed once per plan object, because it visits every pair of ranks. */
function hashPlan(plan: GroupCastPlan): readonly [number, number] {
  let cachedHash = planHashes.get(plan);
  if (!cachedHash) {
    const hash = new WordHash();
    for (let sender = 0; sender < plan.size; sender++) {
      for (let receiver = 0; receiver < plan.size; receiver++) {
        for (const { start, length } of plan.ranges(sender, receiver)) {
          for (const word of [sender, receiver, start, length]) hash.add(word);
        }
      }
    }
    planHashes.set(plan, (cachedHash = [hash.low, hash.high]));
  }
  return cachedHash;
}

/**
 * Hashes what must agree between ranks: the plan, the variant of the operation, and the tensors' dtypes and shapes
 * except rows.
 */
export function groupCastHash(plan: GroupCastPlan, operationCode: number, tensors: readonly Tensor[]): number {
  const hash = new WordHash();
  for (const word of [...hashPlan(plan), operationCode, tensors.length]) hash.add(word);
  for (const { shape, dtype } of tensors) {
    for (const [axis, length] of shape.entries()) hash.add(axis === shape.length - 2 ? -1 : length);
    for (let i = 0; i < dtype.length; i++) hash.add(dtype.charCodeAt(i));
  }
  return hash.value;
}
