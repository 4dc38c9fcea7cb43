import { OptionError, expectValue, formatValue } from "../errors.ts";
import type { Tensor } from "../tensor.ts";
import type { GroupCastPlan, ProcessGroup, RowRange } from "./process-group.ts";

/** What one rank sends and receives by a plan, verified. */
export interface RankGroupCast {
  /** By receiver: rows of this rank's input. */
  readonly sentRanges: readonly (readonly RowRange[])[];
  /** By sender: rows of the sender's input. */
  readonly receivedRanges: readonly (readonly RowRange[])[];
  /** Rows that this rank receives. */
  readonly receivedRows: number;
  /** Rows that this rank's input has at least. */
  readonly minInputRows: number;
}

const emptyRanges: readonly RowRange[] = [];

const verifiedPlans = new WeakMap<GroupCastPlan, RankGroupCast[]>();

/** A rank's part in a plan; verified at the first call with this plan object. */
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
  let groupCastsByRank = verifiedPlans.get(plan);
  if (!groupCastsByRank) verifiedPlans.set(plan, (groupCastsByRank = []));
  return (groupCastsByRank[rank] ??= verifyPlan(where, plan, { rank, knownCasts: groupCastsByRank }));
}

/** `knownCasts`: what other ranks of this process send and receive, which was verified with them. */
function verifyPlan(
  where: string,
  plan: GroupCastPlan,
  {
    rank,
    knownCasts: knownGroupCasts,
  }: { readonly rank: number; readonly knownCasts: readonly (RankGroupCast | undefined)[] },
): RankGroupCast {
  const [sentRanges, receivedRanges]: (readonly RowRange[])[][] = [[], []];
  let [receivedRows, minInputRows] = [0, 0];
  for (let peer = 0; peer < plan.size; peer++) {
    const peerGroupCast = knownGroupCasts[peer];
    sentRanges!.push(peerGroupCast ? peerGroupCast.receivedRanges[rank]! : checkRanges(where, plan, rank, peer));
    receivedRanges!.push(peerGroupCast ? peerGroupCast.sentRanges[rank]! : checkRanges(where, plan, peer, rank));
    receivedRows += countRows(receivedRanges![peer]!);
    minInputRows = Math.max(minInputRows, lastRowEnd(sentRanges![peer]!));
  }
  return { sentRanges: sentRanges!, receivedRanges: receivedRanges!, receivedRows, minInputRows };
}

// oxlint-disable-next-line max-params -- of which plan, from whom to whom
function checkRanges(where: string, plan: GroupCastPlan, sender: number, receiver: number): readonly RowRange[] {
  const ranges = plan.ranges(sender, receiver);
  if (Array.isArray(ranges) && ranges.length === 0) return emptyRanges;
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

/** Rows in ranges. */
export function countRows(ranges: readonly RowRange[]): number {
  let rows = 0;
  for (const { length } of ranges) rows += length;
  return rows;
}

function lastRowEnd(ranges: readonly RowRange[]): number {
  const lastRange = ranges.at(-1);
  return lastRange ? lastRange.start + lastRange.length : 0;
}

const planHashes = new WeakMap<GroupCastPlan, readonly [number, number]>();

/** Two hashes of 32 bits, FNV-1a over words. */
class WordHash {
  low = 0x811c9dc5;
  high = 0x2c1b3c6d;

  add(word: number): void {
    const bits = word ^ Math.floor(word / 2 ** 32);
    this.low = Math.imul(this.low ^ bits, 0x01000193);
    this.high = Math.imul((this.high ^ bits) + 0x9e3779b9, 0x85ebca6b);
    // A product carries what differs to higher bits only.
    this.low ^= this.low >>> 15;
    this.high ^= this.high >>> 13;
  }

  /** 53 bits: what a number holds. */
  get value(): number {
    return (this.high >>> 11) * 2 ** 32 + (this.low >>> 0);
  }
}

/** Of all ranges of a plan, computed once for a plan object: every pair of ranks is visited. */
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

/** What must agree between ranks: the plan, how rows travel by it, and tensors but for their rows. */
export function groupCastHash(plan: GroupCastPlan, operationCode: number, tensors: readonly Tensor[]): number {
  const hash = new WordHash();
  for (const word of [...hashPlan(plan), operationCode, tensors.length]) hash.add(word);
  for (const { shape, dtype } of tensors) {
    for (const [axis, length] of shape.entries()) hash.add(axis === shape.length - 2 ? -1 : length);
    for (let i = 0; i < dtype.length; i++) hash.add(dtype.charCodeAt(i));
  }
  return hash.value;
}
