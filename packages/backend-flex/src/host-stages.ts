import { type OwnerOrder, descendingOwnerOrder, RequiredRows, type RowCut } from "./required-rows.ts";

// Where rows cross to another host once: what several ranks of a host require must come to all of them in the same stage, or it would
// cross once for each stage. So they receive in one order, and are cut alike.

/** The ranks of each host, and the order in which these receive rows. */
export class HostOrders {
  readonly hosts: readonly number[];
  readonly #membersByHost = new Map<number, readonly number[]>();
  readonly #ordersByHost = new Map<number, OwnerOrder>();

  /** The host of each rank. */
  constructor(hosts: readonly number[]) {
    this.hosts = hosts;
    for (const [rank, host] of hosts.entries())
      this.#membersByHost.set(host, [...(this.#membersByHost.get(host) ?? []), rank]);
  }

  /** The ranks of a rank's host. */
  members(rank: number): readonly number[] {
    return this.#membersByHost.get(this.hosts[rank]!)!;
  }

  /** Those of the host first, then the ones before its first rank, around the axis. */
  order(rank: number): OwnerOrder {
    const host = this.hosts[rank]!;
    let order = this.#ordersByHost.get(host);
    if (!order) this.#ordersByHost.set(host, (order = this.#makeOrder(host, this.members(rank)[0]!)));
    return order;
  }

  #makeOrder(host: number, firstRank: number): OwnerOrder {
    const { hosts } = this;
    const size = hosts.length;
    const descendingOrder = descendingOwnerOrder(firstRank, size);
    const precedingOwners = hosts.map((_, position) => descendingOrder.ownerAt(position));
    const owners = [
      ...precedingOwners.filter((each) => hosts[each] === host),
      ...precedingOwners.filter((each) => hosts[each] !== host),
    ];
    const positions = new Int32Array(size);
    for (const [position, owner] of owners.entries()) positions[owner] = position;
    return { size, ownerAt: (position) => owners[position]!, orderIndex: (owner) => positions[owner]! };
  }
}

/** Where a stage begins: behind a part of the rows of the own host; or if that is 1, of the rest. */
interface HostCut {
  readonly ownHostShare: number;
  readonly remoteCut: RowCut;
}

/** What cuts follow from. */
interface StagedRows {
  /** The rows that each rank requires, in the order of its host. */
  readonly getRequiredRows: (rank: number) => RequiredRows;
  /** By rank: where its stages would begin and end by itself, from 0 to 1. */
  readonly cuts: readonly (readonly number[])[];
}

/** Where the stages of ranks begin that share hosts: as they would on average, for all ranks of a host alike. */
export class HostCuts {
  readonly #orders: HostOrders;
  readonly #rows: StagedRows;
  readonly #cutCache = new Map<number, readonly HostCut[]>();

  constructor(orders: HostOrders, rows: StagedRows) {
    this.#orders = orders;
    this.#rows = rows;
  }

  /** Of the rows that a rank requires, in order: where each stage begins, and the last one ends. */
  stageCuts(rank: number): number[] {
    const requiredRows = this.#rows.getRequiredRows(rank);
    const ownHostRows = this.#ownHostRows(rank);
    return this.#hostCuts(rank).map(({ ownHostShare, remoteCut }) =>
      ownHostShare < 1 ? Math.round(ownHostRows * ownHostShare) : requiredRows.countBefore(remoteCut),
    );
  }

  /** Rows that a rank requires of others on its host. */
  #ownHostRows(rank: number): number {
    const requiredRows = this.#rows.getRequiredRows(rank);
    return this.#orders.members(rank).reduce((rows, owner) => rows + requiredRows.numRowsFrom(owner), 0);
  }

  /** Each rank has a part of what it requires of its own host first; the rest is cut for all of them together. */
  #hostCuts(rank: number): readonly HostCut[] {
    const { hosts } = this.#orders;
    let hostCuts = this.#cutCache.get(hosts[rank]!);
    if (!hostCuts) {
      const { getRequiredRows, cuts } = this.#rows;
      const members = this.#orders.members(rank);
      const averageOverMembers = (countRows: (member: number) => number): number =>
        members.reduce((sum, member) => sum + countRows(member), 0) / members.length;
      const remoteRows = members.map((member) =>
        getRequiredRows(member).filter((owner) => hosts[owner] !== hosts[rank]),
      );
      const remoteUnion = RequiredRows.union(this.#orders.order(rank), remoteRows);
      const meanOwnHostRows = averageOverMembers((member) => this.#ownHostRows(member));
      hostCuts = cuts[rank]!.map((_, stage) => {
        const rows = averageOverMembers((member) => cuts[member]![stage]!) * (meanOwnHostRows + remoteUnion.count);
        return {
          ownHostShare: rows < meanOwnHostRows ? rows / meanOwnHostRows : 1,
          remoteCut: remoteUnion.cutAt(Math.max(0, Math.round(rows - meanOwnHostRows))),
        };
      });
      this.#cutCache.set(hosts[rank]!, hostCuts);
    }
    return hostCuts;
  }
}
