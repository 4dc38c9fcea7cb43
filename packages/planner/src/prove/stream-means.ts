import type { Faults } from "./fault.ts";
import type { RankMemory } from "./rank-memory.ts";
import type { Sums } from "./sums.ts";
import type { Zeros } from "./values.ts";

/** What streams work on. */
export interface StreamMeans {
  readonly memories: readonly RankMemory[];
  readonly sums: Sums;
  readonly zeros: Zeros;
  readonly faults: Faults;
}
