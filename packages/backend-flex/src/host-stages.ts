import { type OwnerOrder, descendingOwnerOrder, RequiredRows, type RowCut } from "./required-rows.ts";

// For hierarchical group-casts: a row that several ranks of a host require must be received by all of them in the same
// stage, otherwise it would be sent to the host once per stage. The ranks of a host therefore use the same order and
// the same cuts.

/** The ranks of each host, and the order in which they receive rows. */
export class HostOrders {
  readonly hosts: readonly number[];
  readonly #membersByHost = new Map<number, readonly number[]>();
  readonly #ordersByHost = new Map<number, OwnerOrder>();

  /** `hosts` is the host of each rank. */
  constructor(hosts: readonly number[]) {
    this.hosts = hosts;
    for (const [rank, host] of hosts.entries())
      this.#membersByHost.set(host, [...(this.#membersByHost.get(host) ?? []), rank]);
  }

  /** Returns the ranks of a rank's host. */
  members(rank: number): readonly number[] {
    return this.#membersByHost.get(this.hosts[rank]!)!;
  }

  /**
   * Returns the order of owners for a rank: ranks of its host first, then the others in descending order from the
   * host's first rank.
   */
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

/**
 * The start of a stage: after a share of the rows of the rank's own host or, if that share is 1, within the remote
 * rows.
 */
interface HostCut {
  readonly ownHostShare: number;
  readonly remoteCut: RowCut;
}

/** The inputs from which cuts are computed. */
interface StagedRows {
  /** The rows that each rank requires, in the order of its host. */
  readonly getRequiredRows: (rank: number) => RequiredRows;
  /** By rank: the boundaries of its stages if it were cut independently, as shares from 0 to 1. */
  readonly cuts: readonly (readonly number[])[];
}

/**
 * The stage boundaries of ranks that share hosts. All ranks of a host use the average of their independent boundaries.
 */
export class HostCuts {
  readonly #orders: HostOrders;
  readonly #rows: StagedRows;
  readonly #cutCache = new Map<number, readonly HostCut[]>();

  constructor(orders: HostOrders, rows: StagedRows) {
    this.#orders = orders;
    this.#rows = rows;
  }

  /** Returns the start of each stage, and the end of the last one, within the ordered rows that a rank requires. */
  stageCuts(rank: number): number[] {
    const requiredRows = this.#rows.getRequiredRows(rank);
    const ownHostRows = this.#ownHostRows(rank);
    return this.#hostCuts(rank).map(({ ownHostShare, remoteCut }) =>
      ownHostShare < 1 ? Math.round(ownHostRows * ownHostShare) : requiredRows.countBefore(remoteCut),
    );
  }

  /** Returns the number of rows that a rank requires of other ranks on its host. */
  #ownHostRows(rank: number): number {
    const requiredRows = this.#rows.getRequiredRows(rank);
    return this.#orders.members(rank).reduce((rows, owner) => rows + requiredRows.numRowsFrom(owner), 0);
  }

  /**
   * Returns the cuts of a rank's host. Rows of the own host are cut per rank, by share; remote rows are cut for all
   * ranks of the host together.
   */
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
