import {
  type AttentionBackend,
  type AttentionCall,
  blockwise,
  type Context,
  type Coordinate,
  defineOptions,
  describeBackend,
  dtypeBytes,
  type KvShard,
  local,
  option,
  OptionError,
  type OptionsOf,
  type ResolvedOptionsOf,
} from "@mosaic/core";
import { validator } from "@mosaic/core/context-parallel";
import { type FlexSettings, type PassName, createPlanCache } from "./plan.ts";
import { stageCostOptions } from "./stage-time.ts";
import { gradientStages, type PassContext, stages } from "./stages.ts";
import { QueryExchange } from "./query-exchange.ts";

const countRange = { min: 0, max: 64 } as const;

export const stageCountOptions = defineOptions("stages", {
  /** Number of remote stages in forward. Default: chosen by `cost`. */
  forward: option.integer({ ...countRange, optional: true }),
  /** Number of remote stages in backward. Default: chosen by `cost`. */
  backward: option.integer({ ...countRange, optional: true }),
});

export const flexOptions = defineOptions("flex", {
  /** The mesh axis along which keys and values are sent. Default "sp". */
  axis: option.string({ default: "sp" }),
  /**
   * Number of remote stages, for both passes or as { forward, backward }. 0: one call computes local and remote rows
   * after the remote rows have been received. Default: for each pass, the number with the least time predicted by
   * `cost`.
   */
  stages: option.either(option.integer(countRange), option.nested(stageCountOptions), {
    expected: "an integer from 0 to 64, or { forward, backward }",
    optional: true,
  }),
  /**
   * The cost model by which stages are chosen, a StageCost. It must be equal on all ranks. Default: an H100 with a port
   * of 400 Gbit/s.
   */
  cost: option.nested(stageCostOptions, { optional: true, expected: "a StageCost" }),
  /**
   * Whether two ranks send queries to keys, and results back, if that moves fewer bytes than sending the required keys.
   * This is the case for few queries that attend to many keys, such as the last rows of a document. Not supported with
   * an inner backend that communicates. Default false.
   */
  queriesTravel: option.boolean({ default: false }),
  /**
   * Whether a row that several ranks of another host require is sent to that host once and forwarded within it.
   * Gradients are returned by each rank separately, because their owner adds them in rank order. No effect if all ranks
   * share a host, no two ranks share one, or hosts are unknown. Not supported with an inner backend that communicates.
   * Default false.
   */
  hierarchical: option.boolean({ default: false }),
  /**
   * The backend that attends to the rows of each stage. It may communicate along other axes. In that case all ranks
   * along those axes run each step together, and its `attendBackward` must add to dk and dv the contributions of the
   * queries of all of them to the keys that this rank passed to it. Default: the device's own kernel.
   */
  inner: option.backend({ optional: true }),
});
/** Options of `flex`. */
export type FlexOptions = OptionsOf<typeof flexOptions>;

/**
 * Derives from the options of `flex` the settings of its plans. Throws an OptionError for an unsupported combination.
 */
export function createFlexSettings({
  axis,
  stages: stageCounts,
  cost,
  queriesTravel,
  hierarchical,
  inner = local(),
}: ResolvedOptionsOf<typeof flexOptions>): FlexSettings {
  for (const [name, isSet] of Object.entries({ queriesTravel, hierarchical })) {
    if (!isSet || inner.axes.length === 0) continue;
    throw new OptionError({
      where: `flex(${axis}): ${name}`,
      expected: "false with an inner backend that communicates",
      received: `true with ${inner.name} along ${inner.axes.join(", ")}`,
      remedy: `set ${name} in the innermost flex`,
    });
  }
  const { forward, backward } =
    typeof stageCounts === "number" ? { forward: stageCounts, backward: stageCounts } : (stageCounts ?? {});
  return { axis, inner, stages: { forward, backward }, cost: cost ?? {}, queriesTravel, hierarchical };
}

/**
 * Creates a backend for attention under any mask. Every rank receives exactly the rows of keys and values that its
 * queries attend to, each once. It receives them in stages, each of which is sent while the previous rows are attended
 * to. Local rows are attended to first. In backward, the rows are received again, and the gradients of each stage are
 * returned to their owners while the next stage computes. If faster, the local rows are attended to in two parts, the
 * second during the last return of gradients.
 *
 * Every rank derives the required rows of all ranks, and their stages, from the mask and the layouts without
 * communication. The bytes moved are those of the required rows, for any mask, placement and number of stages;
 * `flexTraffic` computes them. A placement that suits the mask, such as that of `dispatch`, reduces them.
 *
 * With `queriesTravel`, two ranks exchange queries and results instead of keys if that moves fewer bytes
 * (MagiAttention's QO-communication). The returned states are merged, and dq is added, after the last stage.
 *
 * With `hierarchical`, on ranks of several hosts, a row is sent between hosts once for each host that requires it
 * instead of once for each rank. Gradients are returned by each rank separately. Both hops of a stage overlap with the
 * previous step. Ranks of a host receive the rows that they share in the same stage. Each rank still receives its
 * required rows once, so the total bytes over all ranks are unchanged.
 *
 * `inner` attends to the rows of each stage and may communicate along other axes. With `flex({ axis: "node", inner:
 * ring({ axis: "gpu" }) })`, a rank receives, from the ranks with its index in other nodes, the rows to which any query
 * of its node attends.
 *
 * Throws an OptionError if the mesh lacks the axis or the keys are not sharded along it, and a ShapeError or DTypeError
 * if the tensors do not match their layouts or the sums are not float32 of matching shapes. All are checked before
 * anything is sent.
 *
 * Source: MagiAttention (SandAI), 2025. Its dispatch is implemented here as a placement.
 *
 * @example
 * ```ts
 * import { flex } from "@mosaic/backend-flex";
 * flex().axes; // => ["sp"]
 * flex({ axis: "node", inner: flex({ axis: "gpu", stages: 1 }) }).axes; // => ["node", "gpu"]
 * ```
 */
export function flex(options?: FlexOptions): AttentionBackend {
  const settings = createFlexSettings(flexOptions.parse(options));
  const { axis, inner } = settings;
  const validate = validator({ name: "flex", axis, inner });
  const createPassContext = createPassContextFactory(settings);
  return {
    name: "flex",
    description: formatSettings(settings),
    axes: [axis, ...inner.axes],
    check: (ctx, layouts) => validate.context(ctx, layouts),

    attend(ctx, call, state, kv) {
      validate.attend(ctx, call, state, kv);
      const pass = createPassContext(ctx, call, kv, "forward");
      const coordinates = listAttendedCoordinates(pass, kv.from, axis);
      const stagedCall = { ...call, keys: pass.plan.keys };
      using blockwiseAttention = blockwise(inner, coordinates.filter(isVisible));
      using queryExchange = pass.plan.exchange && new QueryExchange(pass, call, pass.plan.exchange);
      queryExchange?.send([call.q]);
      for (const { step, k, v } of stages(pass, kv)) {
        const from = coordinates[step];
        if (from) blockwiseAttention.attend(ctx, stagedCall, state, { k, v, from });
        if (step === 0) queryExchange?.attend(ctx, inner, kv);
      }
      queryExchange?.merge(state);
    },

    attendBackward(ctx, call, grads, kv) {
      validate.attendBackward(ctx, call, grads, kv);
      const pass = createPassContext(ctx, call, kv, "backward");
      const coordinates = listAttendedCoordinates(pass, kv.from, axis);
      const stagedCall = { ...call, keys: pass.plan.keys };
      using blockwiseAttention = blockwise(inner, coordinates.filter(isVisible));
      using queryExchange = pass.plan.exchange && new QueryExchange(pass, call, pass.plan.exchange);
      queryExchange?.send([call.q, call.dOut, call.lse, call.delta]);
      for (const { step, k, v, dk, dv } of gradientStages(pass, stages(pass, kv), grads)) {
        const from = coordinates[step];
        if (from) blockwiseAttention.attendBackward(ctx, stagedCall, { dq: grads.dq, dk, dv }, { k, v, from });
        if (step === 0) queryExchange?.attendBackward(ctx, inner, grads, kv);
      }
      queryExchange?.addGradientsTo(grads.dq);
    },
  };
}

/** Returns a function that creates the context of one pass of a call. All passes share one cache of plans. */
function createPassContextFactory(settings: FlexSettings) {
  const { axis, hierarchical } = settings;
  const getPlan = createPlanCache(settings);
  return (ctx: Context, call: AttentionCall, { k, v, from }: KvShard, pass: PassName): PassContext => {
    const group = ctx.mesh.group(axis);
    const plan = getPlan({ mesh: ctx.mesh.shape, hosts: group.hosts }, call, from);
    const [batch, numHeads, , headDim] = call.q.shape as [number, number, number, number];
    const numKvHeads = k.shape[1]!;
    const bytesPerElement = dtypeBytes[k.dtype];
    return {
      group,
      member: plan.memberAt(from),
      plan: plan.pass(pass, { batch, numHeads, numKvHeads, headDim, valueHeadDim: v.shape[3]!, bytesPerElement }),
      groupCastOptions: { label: `flex(${axis})`, hierarchical },
    };
  };
}

/**
 * Returns, for each step, the coordinate in the plan's keys of the rows that this rank attends to; undefined if it
 * attends to none.
 */
function listAttendedCoordinates(
  { group: { rank }, plan }: PassContext,
  from: Coordinate,
  axis: string,
): (Coordinate | undefined)[] {
  return plan.steps.map((_, step) =>
    plan.isVisible(rank, step) ? { ...from, [axis]: plan.stepCoordinate(rank, step) } : undefined,
  );
}

function isVisible(coordinate: Coordinate | undefined): coordinate is Coordinate {
  return coordinate !== undefined;
}

/** Formats the settings that must be equal on all ranks, including stages and cost. */
function formatSettings({ axis, inner, stages: stageCounts, cost, ...settings }: FlexSettings): string {
  const { forward = "auto", backward = "auto" } = stageCounts;
  const stageTexts =
    stageCounts.forward === undefined && stageCounts.backward === undefined ? [] : [`stages ${forward}/${backward}`];
  const costTexts = Object.entries(cost).map(([name, value]) => `${name} ${value}`);
  const enabledFlags = (["queriesTravel", "hierarchical"] as const).filter((name) => settings[name]);
  const innerTexts = inner.name === "local" ? [] : [describeBackend(inner)];
  return `flex(${[axis, ...stageTexts, ...costTexts, ...enabledFlags, ...innerTexts].join(", ")})`;
}
