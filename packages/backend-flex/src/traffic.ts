import {
  defineOptions,
  dtypeBytes,
  expectValue,
  type GroupCastPlan,
  type OptionsOf,
  option,
  type ProcessGroup,
} from "@mosaic/core";
import {
  axisLength,
  type CallTraffic,
  groupCastMessageRows,
  type ChunkFlow,
  parseTrafficOptions,
  reverseFlow,
  totalTraffic,
  trafficOptions,
} from "@mosaic/core/context-parallel";
import { flexOptions, createFlexSettings } from "./flex.ts";
import { FlexPlan, type PassPlan } from "./plan.ts";

export const flexTrafficOptions = defineOptions("flexTraffic", {
  ...trafficOptions.fields,
  /** The inner backend, as passed to `flex`. Default: none that communicates. */
  inner: flexOptions.fields.inner,
  /**
   * The number of stages, as passed to `flex`. It affects the number of messages but not the bytes. Default: chosen by
   * `cost`.
   */
  stages: flexOptions.fields.stages,
  /** The cost model, as passed to `flex`. Default: an H100 with a port of 400 Gbit/s. */
  cost: flexOptions.fields.cost,
  /** Whether queries are sent to keys, as passed to `flex`. Default false. */
  queriesTravel: flexOptions.fields.queriesTravel,
  /**
   * Whether rows are sent to a host once, as passed to `flex`. It affects what a rank sends but not what it receives.
   * Default false.
   */
  hierarchical: flexOptions.fields.hierarchical,
  /**
   * The host index of each rank along the axis. It affects the choice of stages and, with `hierarchical`, which rows
   * are forwarded. Default: all are on one.
   */
  hosts: option.array(option.integer({ min: 0 }), { optional: true }),
  /** B, the batch. */
  batch: option.integer({ min: 1 }),
  /** H, the query heads. */
  numHeads: option.integer({ min: 1 }),
  /** Hkv, the KV heads. */
  numKvHeads: option.integer({ min: 1 }),
  /** D, the head dimension. */
  headDim: option.integer({ min: 1 }),
  /** Dv, the head dimension of values. Default: headDim. */
  valueHeadDim: option.integer({ min: 1, optional: true }),
});
/** Options of `flexTraffic`. */
export type FlexTrafficOptions = OptionsOf<typeof flexTrafficOptions>;

/**
 * Computes, in closed form, the bytes and messages that one rank sends and receives along the axis, without those of
 * `inner`.
 *
 * Forward: a rank receives K and V of every row of another rank that its queries attend to, once. Over all ranks, the
 * bytes are those of Σ |required rows| for any number of stages. Backward: the same rows of K and V, and float32 dK and
 * dV of the same rows in the opposite direction. In each stage, a rank sends two messages to each peer. With
 * `hierarchical`, a rank sends each row once to a host on which several ranks require it, and forwards rows that it
 * receives in this way. The rows that it receives are unchanged. With `queriesTravel`, queries are sent as rows of q,
 * and out and lse are returned in float32; in backward, rows of q, dOut, lse and delta are sent, and dq is returned.
 *
 * @example
 * ```ts
 * import { contiguous, layoutOf, masks } from "@mosaic/core";
 * import { flexTraffic } from "@mosaic/backend-flex";
 * const mesh = { sp: 4 };
 * const tokens = layoutOf({ mesh, axes: ["sp"], placement: contiguous(), length: 400 });
 * const call = { at: { sp: 3 }, mask: masks.slidingWindow(10).slices(400, 400), queries: tokens, keys: tokens };
 * const sizes = { batch: 1, numHeads: 8, numKvHeads: 8, headDim: 64, dtype: "bfloat16" } as const;
 * // The last rank sees 9 rows of the one before it: K and V of 8 · 64 numbers each.
 * flexTraffic({ mesh, call, ...sizes }).forward.bytesReceived; // => 18432
 * ```
 */
export function flexTraffic(options: FlexTrafficOptions): CallTraffic {
  const settings = parseTrafficOptions(flexTrafficOptions, options);
  const { axis, mesh, call, from = call.at, dtype, batch, numHeads, numKvHeads, headDim } = settings;
  const { valueHeadDim = headDim } = settings;
  const ranks = axisLength("flexTraffic", mesh, { axis, from });
  const { hierarchical, hosts } = settings;
  expectValue(
    "flexTraffic: hosts",
    !hosts || hosts.length === ranks,
    `an array of ${ranks} host indices, one per rank`,
    hosts,
  );
  const plan = new FlexPlan(createFlexSettings(settings), { mesh, hosts }, call, from);
  const [rank, member] = [from[axis]!, plan.memberAt(from)];
  const size = { batch, numHeads, numKvHeads, headDim, valueHeadDim, bytesPerElement: dtypeBytes[dtype] };
  const kvWidths = [headDim, valueHeadDim].map((width) => batch * numKvHeads * width);
  const kvBytesPerRow = kvWidths.map((width) => width * dtypeBytes[dtype]);
  const gradientBytesPerRow = kvWidths.map((width) => width * dtypeBytes.float32);
  const createStagePlans = (pass: PassPlan) =>
    Array.from({ length: pass.numStages }, (_, stage) => pass.groupCastPlan(stage, member));
  const group = { rank, size: ranks, ...(hierarchical && hosts && { hosts }) };
  const createGroupCastFlows = (pass: PassPlan): ChunkFlow[] =>
    createStagePlans(pass).map((each) => groupCastFlow(each, group, kvBytesPerRow));
  const [forward, backward] = [plan.pass("forward", size), plan.pass("backward", size)];
  const gradientFlows = createStagePlans(backward).map((each) =>
    reverseFlow(groupCastFlow(each, { rank, size: ranks }, kvBytesPerRow), gradientBytesPerRow),
  );
  const statisticBytesPerRow = batch * numHeads * dtypeBytes.float32;
  const [qBytesPerRow, dOutBytesPerRow] = [headDim, valueHeadDim].map(
    (width) => batch * numHeads * width * dtypeBytes[dtype],
  ) as [number, number];
  const [dqBytesPerRow, outBytesPerRow] = [statisticBytesPerRow * headDim, statisticBytesPerRow * valueHeadDim];
  return {
    forward: totalTraffic([
      ...createGroupCastFlows(forward),
      ...queryFlows(forward, group, { there: [qBytesPerRow], back: [outBytesPerRow, statisticBytesPerRow] }),
    ]),
    backward: totalTraffic([
      ...createGroupCastFlows(backward),
      ...gradientFlows,
      ...queryFlows(backward, group, {
        there: [qBytesPerRow, dOutBytesPerRow, statisticBytesPerRow, statisticBytesPerRow],
        back: [dqBytesPerRow],
      }),
    ]),
  };
}

/** A rank, the number of ranks and, if rows are sent to a host once, the hosts of all ranks. */
type GroupCastMember = Pick<ProcessGroup, "rank" | "size" | "hosts">;

/** Returns the rows that one rank sends and receives in a group-cast. */
function groupCastFlow(plan: GroupCastPlan, group: GroupCastMember, bytesPerRow: readonly number[]): ChunkFlow {
  return { bytesPerRow, ...groupCastMessageRows(plan, group) };
}

function queryFlows(
  { exchange }: PassPlan,
  group: GroupCastMember,
  { there: sentBytesPerRow, back: returnedBytesPerRow }: Readonly<Record<"there" | "back", readonly number[]>>,
): ChunkFlow[] {
  if (!exchange) return [];
  const { rank, size } = group;
  const returnFlow = reverseFlow(
    groupCastFlow(exchange.queryGroupCastPlan, { rank, size }, sentBytesPerRow),
    returnedBytesPerRow,
  );
  return [groupCastFlow(exchange.queryGroupCastPlan, group, sentBytesPerRow), returnFlow];
}
