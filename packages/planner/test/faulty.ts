import { ring } from "@mosaic/backend-ring";
import {
  type AttentionBackend,
  type Context,
  type KeyBlock,
  local,
  type ProcessGroup,
  type Transfer,
} from "@mosaic/core";

/** What a faulty kernel call may do: the call itself, as often and on what it likes. */
export interface Meddling {
  forward?(site: Site, attend: (keys?: KeyBlock) => void): void;
  backward?(site: Site, attend: (keys?: KeyBlock) => void): void;
}

/** Which tile of the ring it is. */
export interface Site {
  readonly rank: number;
  readonly source: number;
  readonly keys: KeyBlock;
}

/** A ring whose tiles are computed by somebody who meddles. */
export function meddledRing({ forward, backward }: Meddling): AttentionBackend {
  const right = local();
  const inner: AttentionBackend = {
    name: "meddled",
    axes: [],
    attend(ctx, call, state, keys) {
      const attend = (other: KeyBlock = keys): void => right.attend(ctx, call, state, { ...keys, ...other });
      const site = { rank: ctx.rank, source: keys.from["sp"]!, keys };
      if (forward) forward(site, attend);
      else attend();
    },
    attendBackward(ctx, call, grads, keys) {
      const attend = (other: KeyBlock = keys): void => right.attendBackward(ctx, call, grads, { ...keys, ...other });
      const site = { rank: ctx.rank, source: keys.from["sp"]!, keys };
      if (backward) backward(site, attend);
      else attend();
    },
  };
  return ring({ inner });
}

/** A ring whose messages pass through somebody's hands. */
export function tappedRing(
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
    attend: (ctx, call, state, keys) => right.attend(tapped(ctx), call, state, keys),
    attendBackward: (ctx, call, grads, keys) => right.attendBackward(tapped(ctx), call, grads, keys),
  };
}
