import { UsageError } from "../errors.ts";

/** The most ranks that are all shown when no option selects which to show. */
const SHOW_ALL_UP_TO = 8;

/** The ranks that `--console-ranks` names (`all`, `none`, `0,2-3`) among `worldSize`. Throws UsageError. */
export function parseRanks(text: string | undefined, worldSize: number): ReadonlySet<number> {
  if (text === "all" || (text === undefined && worldSize <= SHOW_ALL_UP_TO))
    return new Set(Array.from({ length: worldSize }, (_, rank) => rank));
  if (text === undefined) return new Set([0]);
  if (text === "none") return new Set();
  const ranks = new Set<number>();
  for (const part of text.split(",")) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(part);
    const [first, last] = [Number(match?.[1]), Number(match?.[2] ?? match?.[1])];
    if (match === null || first > last || last >= worldSize)
      throw new UsageError(
        `--console-ranks: expected all, none or ranks of 0-${worldSize - 1} such as 0,2-3, received "${text}"`,
      );
    for (let rank = first; rank <= last; rank++) ranks.add(rank);
  }
  return ranks;
}
