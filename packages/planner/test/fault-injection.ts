import { ring } from "@mosaic/backend-ring";
import {
  type AttentionBackend,
  type Context,
  type KvBlock,
  local,
  type ProcessGroup,
  type Transfer,
} from "@mosaic/core";

/** What a faulty kernel call may do: the call itself, as often and on what it likes. */
export interface FaultInjection {
  forward?(site: Site, attend: (kv?: KvBlock) => void): void;
  backward?(site: Site, attend: (kv?: KvBlock) => void): void;
}

/** Which tile of the ring it is. */
export interface Site {
  readonly rank: number;
  readonly source: number;
  readonly kv: KvBlock;
}

/** A ring whose tiles are computed by a faulty backend. */
export function faultyRing({ forward, backward }: FaultInjection): AttentionBackend {
  const right = local();
  const inner: AttentionBackend = {
    name: "meddled",
    axes: [],
    attend(ctx, call, state, kv) {
      const attend = (other: KvBlock = kv): void => right.attend(ctx, call, state, { ...kv, ...other });
      const site = { rank: ctx.rank, source: kv.from["sp"]!, kv };
      if (forward) forward(site, attend);
      else attend();
    },
    attendBackward(ctx, call, grads, kv) {
      const attend = (other: KvBlock = kv): void => right.attendBackward(ctx, call, grads, { ...kv, ...other });
      const site = { rank: ctx.rank, source: kv.from["sp"]!, kv };
      if (backward) backward(site, attend);
      else attend();
    },
  };
  return ring({ inner });
}

/** A ring whose messages are altered on the way. */
export function interceptedRing(
  tap: (group: ProcessGroup, transfers: readonly Transfer[]) => readonly Transfer[],
): AttentionBackend {
  const right = ring();
  const tapped = (ctx: Context): Context => {
    const group = ctx.mesh.group("sp");
    const { rank, size, ranks, device, name } = group;
    const sendRecv: ProcessGroup["sendRecv"] = (transfers, options) => group.sendRecv(tap(group, transfers), options);
    const own = Object.assign(Object.create(group) as ProcessGroup, {});
    Object.defineProperties(own, {
      sendRecv: { value: sendRecv },
      rank: { value: rank },
      size: { value: size },
      ranks: { value: ranks },
      device: { value: device },
      name: { value: name },
    });
    const { coordinate, axes, shape, world } = ctx.mesh;
    const mesh = { coordinate, axes, shape, world, group: () => own };
    return Object.create(ctx, {
      mesh: { value: mesh },
      device: { value: device },
      rank: { value: ctx.rank },
      assertOpen: { value: () => undefined },
    }) as Context;
  };
  return {
    name: "tapped",
    axes: right.axes,
    attend: (ctx, call, state, kv) => right.attend(tapped(ctx), call, state, kv),
    attendBackward: (ctx, call, grads, kv) => right.attendBackward(tapped(ctx), call, grads, kv),
  };
}
