import type { Payload } from "./rank-schedule.ts";

/** Formats 48502 as 48 502, with thin spaces. */
export function groupDigits(value: number): string {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u2009");
}

/** Formats ranks in words: "rank 2", "ranks 0–3, 6", "all ranks". */
export function formatRanks(ranks: readonly number[], rankCount: number): string {
  if (ranks.length === 0) return "no rank";
  if (ranks.length === rankCount && rankCount > 1) return "all ranks";
  return `${ranks.length > 1 ? "ranks" : "rank"} ${formatRankRanges(ranks)}`;
}

/** Formats sorted ranks as numbers: "0–3, 6". */
export function formatRankRanges(ranks: readonly number[]): string {
  const runs: number[][] = [];
  for (const rank of ranks) {
    const run = runs.at(-1);
    if (run && rank === run.at(-1)! + 1) run.push(rank);
    else runs.push([rank]);
  }
  const joinRanks = (run: readonly number[]): string => run.join(", ");
  return runs.map((run) => (run.length > 2 ? `${run[0]}–${run.at(-1)}` : joinRanks(run))).join(", ");
}

/** Describes the payloads of a batch: "K, V of rank 0 to rank 1; out returned to ranks 2, 3". */
export function formatPayloads(payloads: readonly Payload[], rankCount: number): string {
  const mainPayloads = payloads.filter(({ name }) => name !== "statistics");
  const shownPayloads = mainPayloads.length > 0 ? mainPayloads : payloads;
  // Payloads with the same owners and receiver are listed together, and so are receivers of the same payloads.
  const namesByReceiverAndOwners = groupBy(
    shownPayloads,
    ({ receiver, owners }) => `${receiver} of ${owners}`,
    ({ name }) => name,
  );
  const formatSource = ({ receiver, owners }: Payload): string =>
    `${namesByReceiverAndOwners.get(`${receiver} of ${owners}`)!.join(", ")} ${`${owners}` === `${receiver}` ? "returned" : `of ${formatRanks(owners, rankCount)}`}`;
  const targetsBySource = groupBy(shownPayloads, formatSource, ({ receiver }) => receiver);
  return [...targetsBySource]
    .map(
      ([payloadText, receivers]) =>
        `${payloadText} to ${formatRanks(
          receivers.toSorted((a, b) => a - b),
          rankCount,
        )}`,
    )
    .join("; ");
}

/** Lists the kinds of payloads of a batch: "Q", "K, V". */
export function formatPayloadKinds(payloads: readonly Payload[]): string {
  const kinds = [...new Set(payloads.map(({ name }) => name))].filter((payloadName) => payloadName !== "statistics");
  return kinds.length > 0 ? kinds.join(", ") : "statistics";
}

/** Returns the distinct values by key, both in order of appearance. */
function groupBy<T, V>(items: readonly T[], keyOf: (item: T) => string, valueOf: (item: T) => V): Map<string, V[]> {
  const groups = new Map<string, V[]>();
  for (const item of items) {
    const values = groups.get(keyOf(item)) ?? [];
    if (!values.includes(valueOf(item))) values.push(valueOf(item));
    groups.set(keyOf(item), values);
  }
  return groups;
}
