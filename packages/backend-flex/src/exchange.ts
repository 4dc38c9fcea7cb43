import { type GroupCastPlan, joinSpans, type RowRange, type Span } from "@mosaic/core";
import { spansOfRowsUnchecked } from "@mosaic/core/context-parallel";
import type { RequiredRows } from "./required-rows.ts";

/** What ranks along an axis require of each other: a FlexPlan. */
interface Requirements {
  readonly size: number;
  /** The rows of others that a member of a rank's group requires. */
  requiredRows(rank: number, member: number): RequiredRows;
  /** The queries of others that see a key of a rank. */
  requiredQueries(rank: number): RequiredRows;
  /** The positions of a rank's queries. */
  queries(rank: number): readonly Span[];
}

/** Which pairs of ranks exchange queries and results instead of keys: those of which that moves fewer bytes. */
export class Exchange {
  readonly #plan: Requirements;
  readonly #bytes: Readonly<Record<"keys" | "queries", number>>;
  readonly #keys: RequiredRows[] = [];
  readonly #queries: RequiredRows[] = [];
  readonly #queryRowOffsetsByRank: Int32Array[] = [];
  /** Queries: from those whose they are to those whose keys they see. */
  readonly queryGroupCastPlan: GroupCastPlan;
  /** Their results: back. */
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

  /** The keys that are sent to a rank in any case. */
  keys(rank: number): RequiredRows {
    return (this.#keys[rank] ??= this.#plan.requiredRows(rank, 0).filter((owner) => !this.#isExchanged(rank, owner)));
  }

  /** The queries of others that come to a rank. */
  queries(rank: number): RequiredRows {
    return (this.#queries[rank] ??= this.#plan.requiredQueries(rank).filter((owner) => this.#isExchanged(owner, rank)));
  }

  /** By owner: how many queries of owners before it come to a rank, whose order they lie in. */
  #queryRowOffsets(rank: number): Int32Array {
    const cachedOffsets = this.#queryRowOffsetsByRank[rank];
    if (cachedOffsets) return cachedOffsets;
    const queries = this.queries(rank);
    const offsets = new Int32Array(this.#plan.size + 1);
    for (let owner = 0; owner < this.#plan.size; owner++)
      offsets[owner + 1] = offsets[owner]! + queries.numRowsFrom(owner);
    return (this.#queryRowOffsetsByRank[rank] = offsets);
  }

  /** The queries of one other that come to a rank, as its local rows. */
  queryRangesFrom(rank: number, owner: number): readonly RowRange[] {
    const queries = this.queries(rank);
    return queries.ranges(owner, 0, queries.count);
  }

  /** Global positions of the queries that come to a rank, in the order in which they lie there. */
  querySpans(rank: number): Span[] {
    const queries = this.queries(rank);
    const owners = queries.owners(0, queries.count);
    return joinSpans(
      owners.flatMap((owner) => spansOfRowsUnchecked(this.#plan.queries(owner), this.queryRangesFrom(rank, owner))),
    );
  }

  /** Whether the queries of a rank go to the keys of another. */
  #isExchanged(rank: number, owner: number): boolean {
    const numKeys = this.#plan.requiredRows(rank, 0).numRowsFrom(owner);
    return (
      numKeys > 0 &&
      this.#plan.requiredQueries(owner).numRowsFrom(rank) * this.#bytes.queries < numKeys * this.#bytes.keys
    );
  }
}
