import type { Context, DeviceMesh, ProcessGroup } from "@mosaic/core";
import { DisturbedGroup, type Disturbance } from "./group.ts";

/** A context whose groups are disturbed, and a count of what they have under way. */
export interface DisturbedContext extends Context {
  underWay(): number;
}

/**
 * The same context, as unfriendly as the rules of collectives allow. It numbers random tensors anew, from 0, so that
 * modules made on it have the weights that they have on a fresh context.
 */
export function disturbed(ctx: Context, disturbance: Disturbance): DisturbedContext {
  const groups = new Map<ProcessGroup, DisturbedGroup>();
  const wrap = (group: ProcessGroup): DisturbedGroup => {
    const wrapped = groups.get(group) ?? new DisturbedGroup(group, disturbance);
    groups.set(group, wrapped);
    return wrapped;
  };
  const { mesh } = ctx;
  const wrappedMesh: DeviceMesh = {
    shape: mesh.shape,
    axes: mesh.axes,
    coordinate: mesh.coordinate,
    world: wrap(mesh.world),
    group: (axis) => wrap(mesh.group(axis)),
  };
  return {
    device: ctx.device,
    mesh: wrappedMesh,
    rank: ctx.rank,
    size: ctx.size,
    world: wrappedMesh.world,
    seed: ctx.seed,
    backend: (nameOrValue) => ctx.backend(nameOrValue),
    randomStream: 0,
    nextRandomStream() {
      return this.randomStream++;
    },
    assertOpen: (where) => ctx.assertOpen(where),
    startTrace: () => ctx.startTrace(),
    stopTrace: () => ctx.stopTrace(),
    close: () => ctx.close(),
    underWay: () => [...groups.values()].reduce((sum, group) => sum + group.underWay, 0),
    [Symbol.asyncDispose]: () => Promise.resolve(ctx[Symbol.asyncDispose]()),
  };
}
