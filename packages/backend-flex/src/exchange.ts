import { type GroupCastPlan, joinSpans, type RowRange, type Span } from "@mosaic/core";
import { spansOfRowsUnchecked } from "@mosaic/core/context-parallel";
import type { RequiredRows } from "./required-rows.ts";

/** The rows that ranks along an axis require of each other; implemented by FlexPlan. */
interface Requirements {
  readonly size: number;
  /** Returns the rows of other ranks that a member of a rank's group requires. */
  requiredRows(rank: number, member: number): RequiredRows;
  /** Returns the queries of other ranks that attend to at least one key of a rank. */
  requiredQueries(rank: number): RequiredRows;
  /** Returns the positions of a rank's queries. */
  queries(rank: number): readonly Span[];
}

/** The pairs of ranks that exchange queries and results instead of keys because that moves fewer bytes. */
export class Exchange {
  readonly #plan: Requirements;
  readonly #bytes: Readonly<Record<"keys" | "queries", number>>;
  readonly #keys: RequiredRows[] = [];
  readonly #queries: RequiredRows[] = [];
  readonly #queryRowOffsetsByRank: Int32Array[] = [];
  /** The group-cast of queries, from their owners to the ranks whose keys they attend to. */
  readonly queryGroupCastPlan: GroupCastPlan;
  /** The group-cast of results, back to the owners of the queries. */
  readonly resultGroupCastPlan: GroupCastPlan;

  constructor(plan: Requirements, bytes: Readonly<Record<"keys" | "queries", number>>) {
    this.#plan = plan;
    this.#bytes = bytes;
    const { size } = plan;
    this.queryGroupCastPlan = { size, ranges: (sender, receiver) => this.queryRangesFrom(receiver, sender) };
    this.resultGroupCastPlan = {
      size,
      ranges: (sender, receiver) => {
        const rowOffsets = this.#queryRowOffsets(sender);
        const length = rowOffsets[receiver + 1]! - rowOffsets[receiver]!;
        return length > 0 ? [{ start: rowOffsets[receiver]!, length }] : [];
      },
    };
  }

  /** Returns the keys that are sent to a rank, which are those of owners with which it does not exchange queries. */
  keys(rank: number): RequiredRows {
    return (this.#keys[rank] ??= this.#plan.requiredRows(rank, 0).filter((owner) => !this.#isExchanged(rank, owner)));
  }

  /** Returns the queries of other ranks that are sent to a rank. */
  queries(rank: number): RequiredRows {
    return (this.#queries[rank] ??= this.#plan.requiredQueries(rank).filter((owner) => this.#isExchanged(owner, rank)));
  }

  /**
   * Returns, by owner, the number of queries of preceding owners that are sent to a rank, followed by the total. The
   * queries are in memory there in the order of owners.
   */
  #queryRowOffsets(rank: number): Int32Array {
    const cachedOffsets = this.#queryRowOffsetsByRank[rank];
    if (cachedOffsets) return cachedOffsets;
    const queries = this.queries(rank);
    const offsets = new Int32Array(this.#plan.size + 1);
    for (let owner = 0; owner < this.#plan.size; owner++)
      offsets[owner + 1] = offsets[owner]! + queries.numRowsFrom(owner);
    return (this.#queryRowOffsetsByRank[rank] = offsets);
  }

  /** Returns the queries of `owner` that are sent to a rank, as local rows of `owner`. */
  queryRangesFrom(rank: number, owner: number): readonly RowRange[] {
    const queries = this.queries(rank);
    return queries.ranges(owner, 0, queries.count);
  }

  /** Returns the global positions of the queries that are sent to a rank, in their order in memory there. */
  querySpans(rank: number): Span[] {
    const queries = this.queries(rank);
    const owners = queries.owners(0, queries.count);
    return joinSpans(
      owners.flatMap((owner) => spansOfRowsUnchecked(this.#plan.queries(owner), this.queryRangesFrom(rank, owner))),
    );
  }

  /** Returns whether the queries of `rank` are sent to the keys of `owner`. */
  #isExchanged(rank: number, owner: number): boolean {
    const numKeys = this.#plan.requiredRows(rank, 0).numRowsFrom(owner);
    return (
      numKeys > 0 &&
      this.#plan.requiredQueries(owner).numRowsFrom(rank) * this.#bytes.queries < numKeys * this.#bytes.keys
    );
  }
}
