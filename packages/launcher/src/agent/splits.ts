import type { Branches, Link } from "./branches.ts";
import type { FrameOf } from "./frames.ts";
import { countRanks, expandRankRanges, toRankRanges } from "./rank-ranges.ts";
import type { RankRanges } from "./wire.ts";

/** The id of the group of all ranks. */
const WORLD_GROUP_ID = 1n;
const MAX_GROUPS = 16_384;
const MAX_PENDING_SPLITS = 1024;

/** Returns the id of a color's group: FNV-1a over 64-bit words, as in packages/runtime/native/collectives/call.cc. */
function splitId(parent: bigint, index: bigint, color: bigint): bigint {
  let id = 0xcbf2_9ce4_8422_2325n;
  for (const operand of [parent, index, color])
    id = BigInt.asUintN(64, (id ^ BigInt.asUintN(64, operand)) * 0x100_0000_01b3n);
  return id;
}

/** The groups with members below this agent. */
export class GroupTable {
  readonly #groups = new Map<bigint, RankRanges>();

  constructor(size: number) {
    this.#groups.set(WORLD_GROUP_ID, [[0, size]]);
  }

  /** Returns the world ranks of a group in ascending order; undefined for a group without members below this agent. */
  ranksOf(id: bigint): RankRanges | undefined {
    return this.#groups.get(id);
  }

  add(id: bigint, ranks: RankRanges): void {
    this.#groups.set(id, ranks);
    if (this.#groups.size <= MAX_GROUPS) return;
    // Removes the oldest group except the world. The calls of a removed group are no longer compared.
    for (const oldestGroup of this.#groups.keys())
      if (oldestGroup !== WORLD_GROUP_ID) return void this.#groups.delete(oldestGroup);
  }
}

interface PendingSplit {
  readonly group: bigint;
  readonly index: bigint;
  readonly ranks: RankRanges;
  /** Number of ranks of the group below this agent. */
  readonly expected: number;
  readonly colors: Map<number, bigint>;
}

/** Gathers the colors of splits, and sends them to the members when all have arrived. */
export class SplitCollector {
  readonly #branches: Branches;
  readonly #groups: GroupTable;
  readonly #pending = new Map<string, PendingSplit>();

  constructor(branches: Branches, groups: GroupTable) {
    this.#branches = branches;
    this.#groups = groups;
  }

  /** Handles colors from below. Colors of ranks that are not reached over this connection are ignored. */
  onSplit(link: Link, { group, index, ranks, colors }: FrameOf<"split">): void {
    const key = `${group}:${index}`;
    const pendingSplit = this.#pending.get(key) ?? this.#openSplit(key, { group, index, ranks });
    for (const { rank, color } of colors) if (this.#branches.routesTo(link, rank)) pendingSplit.colors.set(rank, color);
    if (pendingSplit.colors.size < pendingSplit.expected) return;
    this.#pending.delete(key);
    if (this.#branches.isRoot) {
      const members = [...expandRankRanges(pendingSplit.ranks)];
      const orderedColors = BigInt64Array.from(members, (rank) => pendingSplit.colors.get(rank) ?? 0n);
      this.distribute({ kind: "colors", world: 0, group, index, ranks: pendingSplit.ranks, colors: orderedColors });
    } else {
      const rankColors = [...pendingSplit.colors].map(([rank, color]) => ({ rank, color }));
      this.#branches.sendToParent({ kind: "split", group, index, ranks: pendingSplit.ranks, colors: rankColors });
    }
  }

  /** Distributes all colors of a split, which the parent has sent or the root has gathered. */
  distribute(frame: FrameOf<"colors">): void {
    const { group, index, colors } = frame;
    const ranks = [...expandRankRanges(frame.ranks)];
    const { isRoot } = this.#branches;
    // Agents other than the root need only the groups of the ranks below them.
    const localColors = new Set(
      isRoot ? colors : colors.filter((_, i) => this.#branches.linkForRank(ranks[i] as number)),
    );
    const ranksByColor = new Map<bigint, number[]>([...localColors].map((color) => [color, []]));
    for (const [i, rank] of ranks.entries()) ranksByColor.get(colors[i] as bigint)?.push(rank);
    for (const [color, groupRanks] of ranksByColor)
      this.#groups.add(splitId(group, index, color), toRankRanges(groupRanks));
    this.#branches.multicast(frame, toRankRanges(ranks));
  }

  #openSplit(key: string, { group, index, ranks }: Omit<PendingSplit, "expected" | "colors">): PendingSplit {
    const { isRoot } = this.#branches;
    const localRanks = (): RankRanges =>
      [...this.#branches.partition(toRankRanges(expandRankRanges(ranks))).values()].flat();
    const expected = countRanks(isRoot ? ranks : localRanks());
    const pendingSplit = { group, index, ranks, expected, colors: new Map<number, bigint>() };
    this.#pending.set(key, pendingSplit);
    // A split that has lost a member never becomes complete, so the oldest one is dropped.
    if (this.#pending.size > MAX_PENDING_SPLITS) this.#pending.delete(this.#pending.keys().next().value as string);
    return pendingSplit;
  }
}
