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
  /** Remote stages of the forward. Default: chosen by `cost`. */
  forward: option.integer({ ...countRange, optional: true }),
  /** Remote stages of the backward. Default: chosen by `cost`. */
  backward: option.integer({ ...countRange, optional: true }),
});

export const flexOptions = defineOptions("flex", {
  /** The mesh axis along which keys travel. Default "sp". */
  axis: option.string({ default: "sp" }),
  /**
   * Remote stages: for both passes, or { forward, backward }. 0: own and remote rows in one call, when these have arrived.
   * Default: each pass has the number of least time by `cost`.
   */
  stages: option.either(option.integer(countRange), option.nested(stageCountOptions), {
    expected: "an integer from 0 to 64, or { forward, backward }",
    optional: true,
  }),
  /** What stages are chosen by, the same on every rank: a StageCost. Default: an H100 with a port of 400 Gbit/s. */
  cost: option.nested(stageCostOptions, { optional: true, expected: "a StageCost" }),
  /**
   * Whether queries travel to keys, and their results back, between two ranks of which that moves fewer bytes than the keys
   * that are seen: few queries that see many keys, such as the rest of a document. Not with an inner backend that
   * communicates. Default false.
   */
  queriesTravel: option.boolean({ default: false }),
  /**
   * Whether a row that several ranks of another host require crosses to it once and is forwarded within it. Gradients return
   * each by itself: their owner adds them in the order of ranks. No effect where all ranks share a host, none do, or hosts are
   * not known. Not with an inner backend that communicates. Default false.
   */
  hierarchical: option.boolean({ default: false }),
  /**
   * What attends to the rows of each stage. It may communicate along further axes. Then all ranks along those step together,
   * and its `attendBackward` must add to dk and dv what the queries of all of them contribute to the keys that this rank gave
   * it. Default: the device's own kernel.
   */
  inner: option.backend({ optional: true }),
});
/** What `flex` takes. */
export type FlexOptions = OptionsOf<typeof flexOptions>;

/** The settings that plans follow from. */
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
 * Attention under any mask: every rank receives the rows of keys and values that its queries see, each once, and no other, in
 * stages that travel while the rows before them are attended to. The own rows come first. In backward the rows come again, and
 * the gradients of each stage return to their owners while the next one computes; the own rows are then attended to in two
 * parts, the second behind the last gradients, where that is faster.
 *
 * Every rank derives from the mask and the layouts what all ranks require, and in which stage: nothing is sent for it. The
 * bytes are those of the required rows, for any mask, placement and number of stages; `flexTraffic` gives them. A placement
 * that suits the mask makes them few.
 *
 * With `queriesTravel`, queries go to keys and their results return, between ranks of which that moves fewer bytes
 * (MagiAttention's QO-communication): the state is merged, and dq added, when the last stage is done.
 *
 * With `hierarchical`, on ranks of several hosts, between hosts a row costs once for each host that requires it, not for each
 * rank; gradients return each by itself. Both hops of a stage travel while the step before it is attended to. Ranks of a host
 * receive what they share in the same stage. Each still receives what it requires, once: over all ranks the bytes are the same.
 *
 * `inner` attends to what a stage brought, and may communicate along further axes: with `flex({ axis: "node", inner: ring({
 * axis: "gpu" }) })` a rank receives, from the ranks of its place in other nodes, what any query of its node sees.
 *
 * Throws, before anything is sent, an OptionError if the mesh lacks the axis or the keys are not cut along it, and a
 * ShapeError or DTypeError if the tensors are not what their layouts state, or sums are not float32 of their shapes.
 *
 * Source: MagiAttention (SandAI), 2025; its dispatch is a placement here.
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
  const getPlan = createPlanCache(settings);

  function createPassContext(ctx: Context, call: AttentionCall, kv: KvShard, pass: PassName): PassContext {
    const group = ctx.mesh.group(axis);
    const plan = getPlan({ mesh: ctx.mesh.shape, hosts: group.hosts }, call, kv.from);
    const [batch, numHeads, , headDim] = call.q.shape as [number, number, number, number];
    const numKvHeads = kv.k.shape[1]!;
    const bytesPerElement = dtypeBytes[kv.k.dtype];
    return {
      group,
      member: plan.memberAt(kv.from),
      plan: plan.pass(pass, { batch, numHeads, numKvHeads, headDim, valueHeadDim: kv.v.shape[3]!, bytesPerElement }),
      groupCastOptions: { label: `flex(${axis})`, hierarchical: settings.hierarchical },
    };
  }

  /** By step: where, in the keys of the plan, the rows are that this rank attends to; nothing where it attends to none. */
  function memberCoordinates({ group: { rank }, plan }: PassContext, from: Coordinate): (Coordinate | undefined)[] {
    return plan.steps.map((_, step) =>
      plan.isVisible(rank, step) ? { ...from, [axis]: plan.stepCoordinate(rank, step) } : undefined,
    );
  }

  return {
    name: "flex",
    description: formatSettings(settings),
    axes: [axis, ...inner.axes],
    check: (ctx) => validate.context(ctx),

    attend(ctx, call, state, kv) {
      validate.attend(ctx, call, state, kv);
      const pass = createPassContext(ctx, call, kv, "forward");
      const coordinates = memberCoordinates(pass, kv.from);
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
      const coordinates = memberCoordinates(pass, kv.from);
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

function isVisible(coordinate: Coordinate | undefined): coordinate is Coordinate {
  return coordinate !== undefined;
}

/** What must be the same on every rank: stages and cost too. */
function formatSettings({ axis, inner, stages: stageCounts, cost, ...settings }: FlexSettings): string {
  const { forward = "auto", backward = "auto" } = stageCounts;
  const stageTexts =
    stageCounts.forward === undefined && stageCounts.backward === undefined ? [] : [`stages ${forward}/${backward}`];
  const costTexts = Object.entries(cost).map(([name, value]) => `${name} ${value}`);
  const enabledFlags = (["queriesTravel", "hierarchical"] as const).filter((name) => settings[name]);
  const innerTexts = inner.name === "local" ? [] : [describeBackend(inner)];
  return `flex(${[axis, ...stageTexts, ...costTexts, ...enabledFlags, ...innerTexts].join(", ")})`;
}
