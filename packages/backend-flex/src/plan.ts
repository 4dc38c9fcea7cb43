import {
  type AttentionBackend,
  type Coordinate,
  type GroupCastPlan,
  joinSpans,
  type Layout,
  OptionError,
  omitAxes,
  type Span,
  spansLength,
} from "@mosaic/core";
import {
  isVisibleUnchecked,
  LayoutCache,
  type ShardedAttentionCall,
  sharedHosts,
  spansOfRowsUnchecked,
  unionSlices,
  visiblePairsUnchecked,
} from "@mosaic/core/context-parallel";
import { type RequiredRows, RowOwners, attendingQueries, type VisiblePositions, visibleKeys } from "./required-rows.ts";
import { Exchange } from "./exchange.ts";
import { HostCuts, HostOrders } from "./host-stages.ts";
import { createStageSchedule } from "./stage-schedule.ts";
import type { PassSize, RankLoad, StageCost, StageSchedule } from "./stage-time.ts";

// Every rank has the mask and the layouts of all ranks. It derives from them, without communication, the required rows
// of all ranks and the stages in which they are received. Required rows are computed lazily for each rank.
//
// With an inner backend that communicates, a rank of the axis represents a group, whose members are the ranks along the
// inner axes. The members attend together. Each member therefore receives, from the ranks that are the same member of
// the other groups, the rows to which the queries of any member of its group attend.

/** Passes of an attention call. */
export type PassName = "forward" | "backward";

/** The inputs of a backend's plans, in addition to the call. */
export interface FlexSettings {
  readonly axis: string;
  readonly inner: AttentionBackend;
  /** The number of remote stages of each pass; if undefined, the cost model chooses it. */
  readonly stages: Readonly<Record<PassName, number | undefined>>;
  readonly cost: StageCost;
  /** Whether queries are sent to keys where that moves fewer bytes. */
  readonly queriesTravel: boolean;
  /** Whether a row is sent to another host only once. */
  readonly hierarchical: boolean;
}

/** The sizes of a call that the choice of stages depends on. */
export interface CallSize {
  readonly batch: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly valueHeadDim: number;
  readonly bytesPerElement: number;
}

/** The rows that a rank attends to in one call: a part of its local rows, the rows received in a stage, or both. */
export interface Step {
  /** The part of the local rows, less than `numOwnParts`; absent if none. */
  readonly ownPart?: 0 | 1;
  /** The stage in which the remote rows are received, from 0; absent if none. */
  readonly stage?: number;
}

/** The topology of ranks: the mesh, and the host of each rank along the axis if hosts are known. */
export interface FlexTopology {
  readonly mesh: Coordinate;
  readonly hosts?: readonly number[] | undefined;
}

/**
 * With more transfers between ranks than this, visible pairs are estimated from row counts, because exact counts are
 * slow.
 */
const MAX_EXACTLY_COUNTED_PEERS = 2 ** 13;

/** The rows that all ranks along an axis require of each other in one call. Independent of batch and head sizes. */
export class FlexPlan {
  readonly size: number;
  readonly axis: string;
  /** The number of ranks in a group of the inner backend. */
  readonly numMembers: number;
  /** The union of the masks of all samples. */
  readonly mask: ShardedAttentionCall["mask"];
  readonly #call: ShardedAttentionCall;
  readonly #from: Coordinate;
  readonly #settings: FlexSettings;
  /** The inner axes, in the order in which shards are concatenated, and their lengths. */
  readonly #innerAxes: readonly string[];
  readonly #innerLengths: readonly number[];
  readonly #visibleByRank: VisiblePositions[] = [];
  readonly #ownersByMember: RowOwners[] = [];
  readonly #requiredByRank: RequiredRows[][] = [];
  /** The hosts of ranks, if a row is sent to another host only once. */
  readonly hosts: HostOrders | undefined;
  /** The host of each rank; undefined unless there are several hosts and ranks share one. */
  readonly #sharedHosts: readonly number[] | undefined;
  #queryOwners: RowOwners | undefined;
  readonly #requiredQueries: RequiredRows[] = [];
  #keyLoads: RankLoad[] | undefined;
  readonly #passes = new Map<string, PassPlan>();

  // oxlint-disable-next-line max-params -- settings, mesh, call and place, as everywhere, and hosts
  constructor(settings: FlexSettings, { mesh, hosts }: FlexTopology, call: ShardedAttentionCall, from: Coordinate) {
    const { axis, inner } = settings;
    this.axis = axis;
    this.size = mesh[axis] ?? 1;
    this.#sharedHosts = sharedHosts(hosts);
    this.hosts = settings.hierarchical && this.#sharedHosts ? new HostOrders(this.#sharedHosts) : undefined;
    this.#settings = settings;
    this.#call = call;
    this.mask = unionSlices(call);
    this.#from = from;
    this.#innerAxes = call.keys.axes.filter((each) => inner.axes.includes(each));
    this.#innerLengths = this.#innerAxes.map((each) => mesh[each] ?? 1);
    this.numMembers = this.#innerLengths.reduce((product, length) => product * length, 1);
  }

  /** Returns the rows of other ranks that a member of a rank's group requires. */
  requiredRows(rank: number, member: number): RequiredRows {
    const rankRows = (this.#requiredByRank[rank] ??= []);
    return (rankRows[member] ??= this.#memberOwners(member).collectRequiredRows(
      this.#visiblePositions(rank),
      rank,
      this.hosts?.order(rank),
    ));
  }

  /** Returns the queries of other ranks that attend to at least one key of a rank. */
  requiredQueries(rank: number): RequiredRows {
    const shards = () => Array.from({ length: this.size }, (_, each) => this.queries(each));
    this.#queryOwners ??= new RowOwners(shards());
    return (this.#requiredQueries[rank] ??= this.#queryOwners.collectRequiredRows(
      attendingQueries(this.shard(rank, 0), this.mask),
      rank,
    ));
  }

  /** Returns the queries of a rank's group. If queries are not sharded along the axis, all ranks have the same ones. */
  queries(rank: number): readonly Span[] {
    const { at, queries } = this.#call;
    const groupCoordinate = omitAxes(at, this.#settings.inner.axes);
    return queries.spans(this.axis in at ? { ...groupCoordinate, [this.axis]: rank } : groupCoordinate);
  }

  /** Returns the shard of keys of a member of a rank's group. */
  shard(rank: number, member: number): readonly Span[] {
    return this.#call.keys.spans({ ...this.#from, ...this.#memberCoordinate(member), [this.axis]: rank });
  }

  get keys(): Layout {
    return this.#call.keys;
  }

  /**
   * Returns the members at a coordinate, in the order of concatenation: all of them along each inner axis that it
   * lacks.
   */
  membersAt(at: Coordinate): number[] {
    let members = [0];
    for (const [i, axis] of this.#innerAxes.entries()) {
      const length = this.#innerLengths[i]!;
      const coordinate = at[axis];
      const positions = coordinate === undefined ? Array.from({ length }, (_, position) => position) : [coordinate];
      members = members.flatMap((member) => positions.map((position) => member * length + position));
    }
    return members;
  }

  /** Returns the index of a rank among the members of its group. */
  memberAt(at: Coordinate): number {
    return this.membersAt({ ...Object.fromEntries(this.#innerAxes.map((axis) => [axis, 0])), ...at })[0]!;
  }

  /** Returns the plan of one pass for the given sizes. */
  pass(name: PassName, size: CallSize): PassPlan {
    const { batch, numHeads, numKvHeads, headDim, valueHeadDim, bytesPerElement } = size;
    const key = [name, batch, numHeads, numKvHeads, headDim, valueHeadDim, bytesPerElement].join();
    let pass = this.#passes.get(key);
    if (!pass) this.#passes.set(key, (pass = this.#createPassPlan(name, size)));
    return pass;
  }

  #createPassPlan(name: PassName, size: CallSize): PassPlan {
    const candidateExchange = this.#settings.queriesTravel
      ? new Exchange(this, computeBytesPerRow(name, size))
      : undefined;
    const ranks = Array.from({ length: candidateExchange ? this.size : 0 }, (_, rank) => rank);
    const exchange = ranks.some((rank) => candidateExchange!.queries(rank).count > 0) ? candidateExchange : undefined;
    return new PassPlan(this, this.#createSchedule(name, size, exchange), exchange);
  }

  // oxlint-disable-next-line max-params -- the pass, its sizes, and what does not travel
  #createSchedule(name: PassName, size: CallSize, exchange: Exchange | undefined): StageSchedule | undefined {
    // Both passes have the same loads if no queries are sent.
    const loads = exchange ? this.#rankLoads(exchange) : (this.#keyLoads ??= this.#rankLoads(undefined));
    if (loads.every(({ rows }) => rows === 0)) return undefined;
    const { batch, numHeads, numKvHeads, headDim, valueHeadDim, bytesPerElement } = size;
    const width = batch * numKvHeads * (headDim + valueHeadDim);
    // Two matrix products in forward, five in backward (q·k, dq, dk and dOut·v, dv). A float32 has 4 bytes.
    const [matmulDepth, groupReduceRowBytes] =
      name === "forward" ? [headDim + valueHeadDim, 0] : [3 * headDim + 2 * valueHeadDim, width * 4];
    const passSize: PassSize = {
      groupCastRowBytes: width * bytesPerElement,
      groupReduceRowBytes,
      pairFlops: 2 * matmulDepth * batch * numHeads,
    };
    const { cost, stages } = this.#settings;
    return createStageSchedule(loads, passSize, { cost, degree: stages[name], hosts: this.#sharedHosts });
  }

  /**
   * Returns the load of each rank: pairs and queries averaged over its members, and rows of the member that requires
   * the most.
   */
  #rankLoads(exchange: Exchange | undefined): RankLoad[] {
    const { size, numMembers: members, mask } = this;
    const allShardSpans = this.#call.keys.spans(omitAxes(this.#from, [this.axis, ...this.#innerAxes]));
    // Thousands of shards, in ascending order, join to a few spans.
    const allSpans = joinSpans(allShardSpans.toSorted((a, b) => a.start - b.start));
    const ranks = Array.from({ length: size }, (_, rank) => rank);
    const busiestMembers = ranks.map((rank) =>
      Array.from({ length: members }, (_, member) => {
        return { member, rows: exchange ? exchange.keys(rank) : this.requiredRows(rank, member) };
      }).reduce((busiest, each) => (each.rows.count > busiest.rows.count ? each : busiest)),
    );
    const peers = busiestMembers.map(({ rows }) => rows.peers());
    const canCountExactly = peers.reduce((sum, { length }) => sum + length, 0) <= MAX_EXACTLY_COUNTED_PEERS;
    return ranks.map((rank) => {
      const queries = this.queries(rank);
      const groupSpans = this.#call.keys.spans({ ...omitAxes(this.#from, this.#innerAxes), [this.axis]: rank });
      const ownPairs = visiblePairsUnchecked(queries, groupSpans, mask) / members;
      const remotePairs = visiblePairsUnchecked(queries, allSpans, mask) / members - ownPairs;
      const { member, rows } = busiestMembers[rank]!;
      const estimatePairs = (owner: number, count: number): number => {
        if (!canCountExactly) return (remotePairs * count) / rows.count;
        const spans = spansOfRowsUnchecked(this.shard(owner, member), rows.ranges(owner, 0, rows.count));
        return visiblePairsUnchecked(queries, spans, mask);
      };
      const countedPeers = peers[rank]!.map((peer) => ({ ...peer, pairs: estimatePairs(peer.owner, peer.rows) }));
      return { ownPairs, remotePairs, queries: spansLength(queries) / members, peers: countedPeers, rows: rows.count };
    });
  }

  #visiblePositions(rank: number): VisiblePositions {
    return (this.#visibleByRank[rank] ??= visibleKeys(this.queries(rank), this.mask));
  }

  #memberOwners(member: number): RowOwners {
    const shards = () => Array.from({ length: this.size }, (_, rank) => this.shard(rank, member));
    return (this.#ownersByMember[member] ??= new RowOwners(shards()));
  }

  #memberCoordinate(member: number): Coordinate {
    const coordinate: Record<string, number> = {};
    let remainder = member;
    for (let i = this.#innerAxes.length - 1; i >= 0; i--) {
      coordinate[this.#innerAxes[i]!] = remainder % this.#innerLengths[i]!;
      remainder = Math.floor(remainder / this.#innerLengths[i]!);
    }
    return coordinate;
  }
}

/**
 * Creates a function that returns the plan of a call. Plans are cached and serve all ranks along the axes and both
 * passes.
 */
export function createPlanCache(
  settings: FlexSettings,
): (topology: FlexTopology, call: ShardedAttentionCall, from: Coordinate) => FlexPlan {
  // Keyed by hosts and then by mask, because the layers of a model may alternate between masks.
  const caches = new Map<string, WeakMap<ShardedAttentionCall["mask"], LayoutCache<FlexPlan>>>();
  return (topology, call, from) => {
    const mask = unionSlices(call);
    const key = hostsKey(topology.hosts);
    let planCaches = caches.get(key);
    if (!planCaches) caches.set(key, (planCaches = new WeakMap()));
    let plans = planCaches.get(mask);
    if (!plans) planCaches.set(mask, (plans = new LayoutCache([settings.axis, ...settings.inner.axes])));
    return plans.getOrCreate(call, from, () => new FlexPlan(settings, topology, call, from));
  };
}

const hostsKeys = new WeakMap<readonly number[], string>();

/** Returns hosts as a string. It is cached because it is slow to build for many ranks. */
function hostsKey(hosts: readonly number[] | undefined): string {
  if (hosts === undefined) return "";
  let key = hostsKeys.get(hosts);
  if (key === undefined) hostsKeys.set(hosts, (key = hosts.join()));
  return key;
}

/**
 * Returns the bytes moved for a row of keys and values, including gradients, and for a row of queries, including
 * results.
 */
function computeBytesPerRow(
  name: PassName,
  { batch, numHeads, numKvHeads, headDim, valueHeadDim, bytesPerElement }: CallSize,
): Readonly<Record<"keys" | "queries", number>> {
  const isForward = name === "forward";
  const headDimSum = headDim + valueHeadDim;
  // A query moves q, out and lse, or q, dOut, lse, delta and dq. All but q and dOut are float32.
  const queryBytesPerHead = isForward
    ? headDim * bytesPerElement + 4 + 4 * valueHeadDim
    : headDimSum * bytesPerElement + 8 + 4 * headDim;
  return {
    keys: batch * numKvHeads * headDimSum * (bytesPerElement + (isForward ? 0 : 4)),
    queries: batch * numHeads * queryBytesPerHead,
  };
}

/**
 * The plan of one pass of a call: its steps, the rows of each step on every rank, and the rows that are sent for it.
 */
export class PassPlan {
  readonly steps: readonly Step[];
  /** The number of parts in which local rows are attended to. */
  readonly numOwnParts: 1 | 2;
  /** The number of remote stages. */
  readonly numStages: number;
  /**
   * The layout of keys by step. The coordinate along the axis is `stepCoordinate(rank, step)`, so that one layout
   * covers all steps of all ranks and an inner backend derives its plan from it once.
   */
  readonly keys: Layout;
  /** The exchange of queries; undefined if no queries are sent. */
  readonly exchange: Exchange | undefined;
  readonly #plan: FlexPlan;
  readonly #schedule: StageSchedule | undefined;
  readonly #groupCastPlans: GroupCastPlan[] = [];
  readonly #cutsByRank: (readonly number[])[] = [];
  readonly #hostCuts: HostCuts | undefined;
  readonly #spans = new Map<number, readonly Span[]>();
  readonly #isVisibleCache: (boolean | undefined)[] = [];

  constructor(plan: FlexPlan, schedule: StageSchedule | undefined, exchange: Exchange | undefined) {
    this.exchange = exchange;
    this.#plan = plan;
    this.#schedule = schedule;
    const getRequiredRows = (rank: number): RequiredRows => this.#required(rank, 0);
    this.#hostCuts = schedule && plan.hosts && new HostCuts(plan.hosts, { getRequiredRows, cuts: schedule.cuts });
    this.steps = createSteps(schedule);
    this.numOwnParts = schedule?.isSplit ? 2 : 1;
    this.numStages = schedule === undefined ? 0 : Math.max(1, schedule.degree);
    const { length, axes } = plan.keys;
    this.keys = { length, axes, spans: (at) => this.#spansAtCoordinate(at) };
  }

  /** Returns the coordinate along the axis, in `keys`, of the rows that a rank attends to in a step. */
  stepCoordinate(rank: number, step: number): number {
    return rank * this.steps.length + step;
  }

  /** Returns whether any query of a rank's group attends to a row of a step. */
  isVisible(rank: number, step: number): boolean {
    const coordinate = this.stepCoordinate(rank, step);
    return (this.#isVisibleCache[coordinate] ??= isVisibleUnchecked(
      this.#plan.queries(rank),
      this.#spansAtCoordinate({ [this.#plan.axis]: coordinate }),
      this.#plan.mask,
    ));
  }

  /** Returns the group-cast plan of a stage among the ranks that are this member of their groups. */
  groupCastPlan(stage: number, member: number): GroupCastPlan {
    const { size, numMembers: members } = this.#plan;
    return (this.#groupCastPlans[stage * members + member] ??= {
      size,
      ranges: (sender, receiver) => {
        const { from, to } = this.#stageRowRange(stage, receiver, member);
        return this.#required(receiver, member).ranges(sender, from, to);
      },
    });
  }

  /** Returns the number of rows that a member receives in a stage. */
  numReceivedRows(stage: number, rank: number, member: number): number {
    const { from, to } = this.#stageRowRange(stage, rank, member);
    return to - from;
  }

  /** Returns the largest number of rows that a member receives in any stage. */
  maxReceivedRows(rank: number, member: number): number {
    let maxRows = 0;
    for (let stage = 0; stage < this.numStages; stage++)
      maxRows = Math.max(maxRows, this.numReceivedRows(stage, rank, member));
    return maxRows;
  }

  /** Returns the local rows [from, to) of a part. */
  ownRowRange(part: 0 | 1, rank: number, member: number): { readonly from: number; readonly to: number } {
    const rows = spansLength(this.#plan.shard(rank, member));
    if (this.numOwnParts === 1) return { from: 0, to: rows };
    const cutRow = Math.round(rows * this.#schedule!.ownCuts[rank]!);
    return part === 0 ? { from: 0, to: cutRow } : { from: cutRow, to: rows };
  }

  #required(rank: number, member: number): RequiredRows {
    return this.exchange ? this.exchange.keys(rank) : this.#plan.requiredRows(rank, member);
  }

  /** Returns the range [from, to) of a stage within the rows that a member requires. */
  #stageRowRange(stage: number, rank: number, member: number): { readonly from: number; readonly to: number } {
    const cuts = (this.#cutsByRank[rank * this.#plan.numMembers + member] ??= this.#computeCuts(rank, member));
    return { from: cuts[stage]!, to: cuts[stage + 1]! };
  }

  /** Computes the start of each stage, and the end of the last one, within the rows that a member requires. */
  #computeCuts(rank: number, member: number): readonly number[] {
    const required = this.#required(rank, member);
    const { degree, cuts } = this.#schedule!;
    if (degree === 0) return [0, required.count];
    return this.#hostCuts?.stageCuts(rank) ?? cuts[rank]!.map((cut) => Math.round(required.count * cut));
  }

  #spansAtCoordinate(at: Coordinate): readonly Span[] {
    const { axis, numMembers: members } = this.#plan;
    const position = at[axis];
    if (position === undefined) {
      throw new OptionError({
        where: `flex(${axis}): keys`,
        expected: `a coordinate that includes the axis ${axis}`,
        received: JSON.stringify(at),
        remedy: `use the axis ${axis} in one backend only`,
      });
    }
    const groupMembers = this.#plan.membersAt(at);
    // Only one member or all members are cached. Other sets are rare.
    if (groupMembers.length > 1 && groupMembers.length < members)
      return joinSpans(groupMembers.flatMap((each) => this.#memberSpans(position, each)));
    const key = position * (members + 1) + (groupMembers.length === 1 ? groupMembers[0]! : members);
    let spans = this.#spans.get(key);
    if (!spans)
      this.#spans.set(key, (spans = joinSpans(groupMembers.flatMap((each) => this.#memberSpans(position, each)))));
    return spans;
  }

  /** Returns the positions of the rows that a member attends to, in their order in memory. */
  #memberSpans(position: number, member: number): Span[] {
    const rank = Math.floor(position / this.steps.length);
    const { ownPart, stage } = this.steps[position % this.steps.length]!;
    const spans: Span[] = [];
    if (ownPart !== undefined) {
      const { from, to } = this.ownRowRange(ownPart, rank, member);
      if (from < to)
        spans.push(...spansOfRowsUnchecked(this.#plan.shard(rank, member), [{ start: from, length: to - from }]));
    }
    if (stage !== undefined) {
      const { from, to } = this.#stageRowRange(stage, rank, member);
      const required = this.#required(rank, member);
      for (const owner of required.owners(from, to))
        spans.push(...spansOfRowsUnchecked(this.#plan.shard(owner, member), required.ranges(owner, from, to)));
    }
    return spans;
  }
}

function createSteps(schedule: StageSchedule | undefined): Step[] {
  if (schedule === undefined) return [{ ownPart: 0 }];
  const { degree, isSplit } = schedule;
  if (degree === 0) return [{ ownPart: 0, stage: 0 }];
  const stages = Array.from({ length: degree }, (_, stage): Step => ({ stage }));
  return [{ ownPart: 0 }, ...stages, ...(isSplit ? [{ ownPart: 1 } as const] : [])];
}
