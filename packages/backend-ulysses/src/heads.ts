import type { DependencyTable } from "@mosaic/core/context-parallel";

/** `count` heads from `first` on. */
export interface Heads {
  readonly first: number;
  readonly count: number;
}

/** Query heads, and the key heads that they read. */
export interface Share {
  readonly queries: Heads;
  readonly keys: Heads;
}

/** How many heads there are; `numHeads` is a multiple of `numKvHeads`. */
export interface HeadCounts {
  readonly numHeads: number;
  readonly numKvHeads: number;
}

/** How a sequence lies on the ranks of an axis before an exchange, and after: some rows of all heads, or all rows of some. */
export interface Split {
  /** Rows of every rank. */
  readonly rows: readonly number[];
  /** Heads of every rank; a head may belong to several. */
  readonly heads: readonly Heads[];
}

/** The splits of queries, and of keys and values, among the ranks of a sequence-parallel group. */
export function splitsOf(dependencies: DependencyTable, counts: HeadCounts): Record<keyof Share, Split> {
  const { size, queryRows, keyRows } = dependencies;
  const shares = sharesOf(counts, size);
  return {
    queries: { rows: shares.map((_, rank) => queryRows(rank)), heads: shares.map(({ queries }) => queries) },
    keys: { rows: shares.map((_, rank) => keyRows(rank)), heads: shares.map(({ keys }) => keys) },
  };
}

/**
 * The heads of every rank: query heads in order, as equal as can be (the first heads % size ranks have one more; with
 * fewer heads than ranks the last have none), and every key head that they read. A key head may belong to several ranks.
 */
export function sharesOf({ numHeads, numKvHeads }: HeadCounts, size: number): Share[] {
  const perKey = numHeads / numKvHeads;
  const base = Math.floor(numHeads / size);
  const longer = numHeads % size;
  return Array.from({ length: size }, (_, rank) => {
    const first = rank * base + Math.min(rank, longer);
    const count = base + (rank < longer ? 1 : 0);
    if (count === 0) return { queries: { first: 0, count }, keys: { first: 0, count } };
    const key = Math.floor(first / perKey);
    const end = Math.floor((first + count - 1) / perKey) + 1;
    return { queries: { first, count }, keys: { first: key, count: end - key } };
  });
}

/**
 * A share in parts, in each of which every key head has equally many query heads, as kernels want it; heads count from
 * the share's first. Cutting query heads 3 to 9 of groups of four gives 3 | 4 to 7 | 8 and 9.
 */
export function partsOf({ numHeads, numKvHeads }: HeadCounts, { queries, keys }: Share): Share[] {
  const perKey = numHeads / numKvHeads;
  const parts: Share[] = [];
  for (let key = 0; key < keys.count; key++) {
    const begin = Math.max(0, (keys.first + key) * perKey - queries.first);
    const end = Math.min(queries.count, (keys.first + key + 1) * perKey - queries.first);
    const last = parts.at(-1);
    if (last && last.queries.count === (end - begin) * last.keys.count) parts[parts.length - 1] = grown(last, end);
    else parts.push({ queries: { first: begin, count: end - begin }, keys: { first: key, count: 1 } });
  }
  return parts;
}

/** The part with one more key head, and the query heads before `end`. */
function grown({ queries, keys }: Share, end: number): Share {
  return {
    queries: { first: queries.first, count: end - queries.first },
    keys: { first: keys.first, count: keys.count + 1 },
  };
}
