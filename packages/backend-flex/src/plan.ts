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

// Every rank has the layouts of all ranks and the mask, and derives alone what every rank requires, and in which stage it
// arrives: nothing is sent for it. Required rows are found when they are asked for, rank by rank.
//
// With an inner backend that communicates, a rank of the axis stands for a group: the ranks along the inner axes, its members.
// They attend together, so each receives of its own members along the axis what the queries of any member of its group see.

/** Passes of an attention call. */
export type PassName = "forward" | "backward";

/** What plans of a backend follow from, beside the call. */
export interface FlexSettings {
  readonly axis: string;
  readonly inner: AttentionBackend;
  /** Remote stages of each pass; chosen by the cost model where undefined. */
  readonly stages: Readonly<Record<PassName, number | undefined>>;
  readonly cost: StageCost;
  /** Whether queries travel to keys, where that moves fewer bytes. */
  readonly queriesTravel: boolean;
  /** Whether rows cross to another host once. */
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

/** Rows that a rank attends to at once: some of its own, and those that have arrived in a stage. */
export interface Step {
  /** The part of the own rows, 0 or 1 of `parts`; absent if none. */
  readonly ownPart?: 0 | 1;
  /** The stage in which the others arrive, from 0; absent if none. */
  readonly stage?: number;
}

/** How ranks lie: the mesh, and the host of each rank along the axis, where hosts are known. */
export interface FlexTopology {
  readonly mesh: Coordinate;
  readonly hosts?: readonly number[] | undefined;
}

/** Transfers between ranks beyond which their pairs are not counted one by one, which takes time, but by rows. */
const MAX_EXACTLY_COUNTED_PEERS = 2 ** 13;

/** What all ranks along an axis require of each other in one call, whatever the sizes of heads and batch. */
export class FlexPlan {
  readonly size: number;
  readonly axis: string;
  /** How many ranks a group of the inner backend has. */
  readonly numMembers: number;
  /** What any query sees. */
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
  /** Where rows cross to another host once: the hosts of ranks. */
  readonly hosts: HostOrders | undefined;
  /** The host of each rank, where several share one of several. */
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

  /** The rows of others that a member of a rank's group requires. */
  requiredRows(rank: number, member: number): RequiredRows {
    const rankRows = (this.#requiredByRank[rank] ??= []);
    return (rankRows[member] ??= this.#memberOwners(member).collectRequiredRows(
      this.#visiblePositions(rank),
      rank,
      this.hosts?.order(rank),
    ));
  }

  /** The queries of others that see a key of a rank. */
  requiredQueries(rank: number): RequiredRows {
    const shards = () => Array.from({ length: this.size }, (_, each) => this.queries(each));
    this.#queryOwners ??= new RowOwners(shards());
    return (this.#requiredQueries[rank] ??= this.#queryOwners.collectRequiredRows(
      attendingQueries(this.shard(rank, 0), this.mask),
      rank,
    ));
  }

  /** The queries of a rank's group; those that are whole along the axis are the same for every rank. */
  queries(rank: number): readonly Span[] {
    const { at, queries } = this.#call;
    const groupCoordinate = omitAxes(at, this.#settings.inner.axes);
    return queries.spans(this.axis in at ? { ...groupCoordinate, [this.axis]: rank } : groupCoordinate);
  }

  /** The shard of a member of a rank's group. */
  shard(rank: number, member: number): readonly Span[] {
    return this.#call.keys.spans({ ...this.#from, ...this.#memberCoordinate(member), [this.axis]: rank });
  }

  get keys(): Layout {
    return this.#call.keys;
  }

  /** Members at a coordinate: one, or all along an inner axis that it lacks, in the order of concatenation. */
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

  /** The number of a rank among the members of its group. */
  memberAt(at: Coordinate): number {
    return this.membersAt({ ...Object.fromEntries(this.#innerAxes.map((axis) => [axis, 0])), ...at })[0]!;
  }

  /** How one pass goes, for these sizes. */
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
    // Both passes move the same rows where no queries travel.
    const loads = exchange ? this.#rankLoads(exchange) : (this.#keyLoads ??= this.#rankLoads(undefined));
    if (loads.every(({ rows }) => rows === 0)) return undefined;
    const { batch, numHeads, numKvHeads, headDim, valueHeadDim, bytesPerElement } = size;
    const width = batch * numKvHeads * (headDim + valueHeadDim);
    // Two products of matrices forward, five backward (q·k, dq, dk and dOut·v, dv); 4 bytes of float32.
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

  /** Of each rank the load of one member on average, whose rows are those of the busiest. */
  #rankLoads(exchange: Exchange | undefined): RankLoad[] {
    const { size, numMembers: members, mask } = this;
    const allShardSpans = this.#call.keys.spans(omitAxes(this.#from, [this.axis, ...this.#innerAxes]));
    // In ascending order thousands of shards are a few spans.
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

/** Plans of a backend's calls, each derived once for all ranks along its axes, forward and backward. */
export function createPlanCache(
  settings: FlexSettings,
): (topology: FlexTopology, call: ShardedAttentionCall, from: Coordinate) => FlexPlan {
  // By hosts, where they matter, and by mask: the layers of a model may have masks by turns.
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

/** Hosts as a string: of many ranks it is long to make, and made once. */
function hostsKey(hosts: readonly number[] | undefined): string {
  if (hosts === undefined) return "";
  let key = hostsKeys.get(hosts);
  if (key === undefined) hostsKeys.set(hosts, (key = hosts.join()));
  return key;
}

/** Bytes of a row of keys that travels, gradients included, and of a row of queries, with the results that return. */
function computeBytesPerRow(
  name: PassName,
  { batch, numHeads, numKvHeads, headDim, valueHeadDim, bytesPerElement }: CallSize,
): Readonly<Record<"keys" | "queries", number>> {
  const isForward = name === "forward";
  const headDimSum = headDim + valueHeadDim;
  // Of queries q, out and lse, or q, dOut, lse, delta and dq; what is summed is float32.
  const queryBytesPerHead = isForward
    ? headDim * bytesPerElement + 4 + 4 * valueHeadDim
    : headDimSum * bytesPerElement + 8 + 4 * headDim;
  return {
    keys: batch * numKvHeads * headDimSum * (bytesPerElement + (isForward ? 0 : 4)),
    queries: batch * numHeads * queryBytesPerHead,
  };
}

/** One pass of a call: its steps, what is in each on every rank, and what travels for it. */
export class PassPlan {
  readonly steps: readonly Step[];
  /** How many parts the own rows are attended to in. */
  readonly numOwnParts: 1 | 2;
  /** Remote stages. */
  readonly numStages: number;
  /**
   * The keys as ranks have them step by step. Its coordinate along the axis is `place(rank, step)`, so that one layout serves
   * all steps of all ranks, and what an inner backend derives from it is derived once.
   */
  readonly keys: Layout;
  /** Queries that travel; absent if none do. */
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

  /** The coordinate along the axis, in `keys`, of what a rank attends to in a step. */
  stepCoordinate(rank: number, step: number): number {
    return rank * this.steps.length + step;
  }

  /** Whether the group of a rank sees anything in a step. */
  isVisible(rank: number, step: number): boolean {
    const coordinate = this.stepCoordinate(rank, step);
    return (this.#isVisibleCache[coordinate] ??= isVisibleUnchecked(
      this.#plan.queries(rank),
      this.#spansAtCoordinate({ [this.#plan.axis]: coordinate }),
      this.#plan.mask,
    ));
  }

  /** What travels in a stage between the ranks that are this member of their groups. */
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

  /** Rows that a member receives in a stage. */
  numReceivedRows(stage: number, rank: number, member: number): number {
    const { from, to } = this.#stageRowRange(stage, rank, member);
    return to - from;
  }

  /** The most rows that a member receives in any stage. */
  maxReceivedRows(rank: number, member: number): number {
    let maxRows = 0;
    for (let stage = 0; stage < this.numStages; stage++)
      maxRows = Math.max(maxRows, this.numReceivedRows(stage, rank, member));
    return maxRows;
  }

  /** The own rows in a part: [from, to). */
  ownRowRange(part: 0 | 1, rank: number, member: number): { readonly from: number; readonly to: number } {
    const rows = spansLength(this.#plan.shard(rank, member));
    if (this.numOwnParts === 1) return { from: 0, to: rows };
    const cutRow = Math.round(rows * this.#schedule!.ownCuts[rank]!);
    return part === 0 ? { from: 0, to: cutRow } : { from: cutRow, to: rows };
  }

  #required(rank: number, member: number): RequiredRows {
    return this.exchange ? this.exchange.keys(rank) : this.#plan.requiredRows(rank, member);
  }

  /** Of the rows that a member requires those of a stage: [from, to). */
  #stageRowRange(stage: number, rank: number, member: number): { readonly from: number; readonly to: number } {
    const cuts = (this.#cutsByRank[rank * this.#plan.numMembers + member] ??= this.#computeCuts(rank, member));
    return { from: cuts[stage]!, to: cuts[stage + 1]! };
  }

  /** Where the stages of a member begin in the rows that it requires, and the last one ends. */
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
    // One member, or all: anything between is seldom asked for.
    if (groupMembers.length > 1 && groupMembers.length < members)
      return joinSpans(groupMembers.flatMap((each) => this.#memberSpans(position, each)));
    const key = position * (members + 1) + (groupMembers.length === 1 ? groupMembers[0]! : members);
    let spans = this.#spans.get(key);
    if (!spans)
      this.#spans.set(key, (spans = joinSpans(groupMembers.flatMap((each) => this.#memberSpans(position, each)))));
    return spans;
  }

  /** Positions of the rows that a member attends to, in their order in memory. */
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
