import { flex, type FlexOptions } from "@mosaic/backend-flex";
import { ring } from "@mosaic/backend-ring";
import {
  type AttentionBackend,
  type Context,
  type GroupCastPlan,
  type KvBlock,
  local,
  type ProcessGroup,
  type RowRange,
  type Transfer,
} from "@mosaic/core";

/** What a faulty kernel call does: it may run the call any number of times, on any block. */
export interface FaultInjection {
  forward?(site: Site, attend: (kv?: KvBlock) => void): void;
  backward?(site: Site, attend: (kv?: KvBlock) => void): void;
}

/** The tile of the ring that is computed. */
export interface Site {
  readonly rank: number;
  readonly source: number;
  readonly kv: KvBlock;
}

/** A ring whose tiles are computed by a faulty backend. */
export function faultyRing({ forward, backward }: FaultInjection): AttentionBackend {
  const localBackend = local();
  const inner: AttentionBackend = {
    name: "meddled",
    axes: [],
    attend(ctx, call, state, kv) {
      const attend = (replacement: KvBlock = kv): void =>
        localBackend.attend(ctx, call, state, { ...kv, ...replacement });
      const site = { rank: ctx.rank, source: kv.from["sp"]!, kv };
      if (forward) forward(site, attend);
      else attend();
    },
    attendBackward(ctx, call, grads, kv) {
      const attend = (replacement: KvBlock = kv): void =>
        localBackend.attendBackward(ctx, call, grads, { ...kv, ...replacement });
      const site = { rank: ctx.rank, source: kv.from["sp"]!, kv };
      if (backward) backward(site, attend);
      else attend();
    },
  };
  return ring({ inner });
}

/** A ring whose messages are altered before they are posted. */
export function interceptedRing(
  tap: (group: ProcessGroup, transfers: readonly Transfer[]) => readonly Transfer[],
): AttentionBackend {
  return tapBackend(ring(), (group) => ({
    sendRecv: (transfers, options) => group.sendRecv(tap(group, transfers), options),
  }));
}

/** The operation of a group that a plan is for: its index among those of its kind on this rank. */
export interface CastSite {
  readonly op: "groupCast" | "groupReduce";
  readonly rank: number;
  readonly call: number;
}

/** A flex whose plans are altered: `tap` replaces `plan.ranges`. */
export function tappedFlex(
  options: FlexOptions,
  tap: (site: CastSite, plan: GroupCastPlan, sender: number, receiver: number) => readonly RowRange[],
): AttentionBackend {
  const calls = new Map<string, number>();
  return tapBackend(flex(options), (group) => {
    const { rank } = group;
    const alterPlan = (op: CastSite["op"], plan: GroupCastPlan): GroupCastPlan => {
      const call = calls.get(`${op} ${rank}`) ?? 0;
      calls.set(`${op} ${rank}`, call + 1);
      return { size: plan.size, ranges: (sender, receiver) => tap({ op, rank, call }, plan, sender, receiver) };
    };
    return {
      groupCast: (out, input, plan, castOptions) =>
        group.groupCast(out, input, alterPlan("groupCast", plan), castOptions),
      groupReduce: (out, input, plan, castOptions) =>
        group.groupReduce(out, input, alterPlan("groupReduce", plan), castOptions),
    };
  });
}

/** Wraps a backend so that some operations of its groups are replaced. */
function tapBackend(
  backend: AttentionBackend,
  createReplacements: (group: ProcessGroup) => Partial<Pick<ProcessGroup, "sendRecv" | "groupCast" | "groupReduce">>,
): AttentionBackend {
  const wrapContext = (ctx: Context): Context => {
    const group = ctx.mesh.group("sp");
    const { rank, size, ranks, device, name } = group;
    const replacements = Object.entries(createReplacements(group)).map(
      ([operation, value]) => [operation, { value }] as const,
    );
    const tappedGroup = Object.assign(Object.create(group) as ProcessGroup, {});
    Object.defineProperties(tappedGroup, {
      ...Object.fromEntries(replacements),
      rank: { value: rank },
      size: { value: size },
      ranks: { value: ranks },
      device: { value: device },
      name: { value: name },
    });
    const { coordinate, axes, shape, world } = ctx.mesh;
    const mesh = { coordinate, axes, shape, world, group: () => tappedGroup };
    return Object.create(ctx, {
      mesh: { value: mesh },
      device: { value: device },
      rank: { value: ctx.rank },
      assertOpen: { value: () => undefined },
    }) as Context;
  };
  return {
    name: "tapped",
    axes: backend.axes,
    attend: (ctx, call, state, kv) => backend.attend(wrapContext(ctx), call, state, kv),
    attendBackward: (ctx, call, grads, kv) => backend.attendBackward(wrapContext(ctx), call, grads, kv),
  };
}
