import type { AttentionBackend, Context, Tensor } from "@mosaic/attention";
import type { Kernels } from "@mosaic/attention/core";

/** Number of steps of work. */
export interface WorkUnits {
  readonly forward: number;
  readonly backward: number;
}

/** The backward has five matrix products, the forward two. */
const BACKWARD_TO_FORWARD_RATIO = 2.5;

/** Returns a listener that converts completed steps to the completed share of the total work. */
export function createProgressMeter(totalWork: WorkUnits, onProgress: (share: number) => void): ProgressListener {
  const totalUnits = totalWork.forward + totalWork.backward * BACKWARD_TO_FORWARD_RATIO;
  let completedUnits = 0;
  return ({ isBackward }) => {
    completedUnits += isBackward ? BACKWARD_TO_FORWARD_RATIO : 1;
    onProgress(Math.min(1, completedUnits / totalUnits));
  };
}

/** A step of attention: one head of one block. */
interface ProgressStep {
  readonly isBackward: boolean;
}

/** Called for every step that the device has completed. */
export type ProgressListener = (step: ProgressStep) => void;

/**
 * Returns `backend` on a device whose attention kernels run head by head and report progress. This works for every
 * backend, because all of them call these kernels. Heads are independent, so the results are bitwise identical.
 */
export function wrapWithProgress(backend: AttentionBackend, onStep: ProgressListener): AttentionBackend {
  const wrapContext = (ctx: Context): Context => {
    const kernels = kernelsWithProgress(ctx, onStep);
    return withOverrides(ctx, { device: withOverrides(ctx.device, { kernels }) });
  };
  return {
    name: backend.name,
    axes: backend.axes,
    check: (ctx) => backend.check?.(ctx),
    attend: (ctx, call, state, kv) => backend.attend(wrapContext(ctx), call, state, kv),
    attendBackward: (ctx, call, grads, kv) => backend.attendBackward(wrapContext(ctx), call, grads, kv),
  };
}

/** Reports steps without blocking: a step is complete when a `synchronize` called right after its kernel resolves. */
function kernelsWithProgress(ctx: Context, onStep: ProgressListener): Kernels {
  const { kernels, stream } = ctx.device;
  const report = (step: ProgressStep): void => {
    // A failed stream is reported by the read of the result.
    stream.synchronize().then(
      () => onStep(step),
      () => {},
    );
  };
  const attend: Kernels["attend"] = ({ out, lse }, q, { k, v }, tile) => {
    for (const viewHead of viewsByHead(q)) {
      kernels.attend({ out: viewHead(out), lse: viewHead(lse) }, viewHead(q), { k: viewHead(k), v: viewHead(v) }, tile);
      report({ isBackward: false });
    }
  };
  // oxlint-disable-next-line max-params -- the kernels' contract
  const attendBackward: Kernels["attendBackward"] = ({ dq, dk, dv }, q, savedTensors, { k, v }, tile) => {
    for (const viewHead of viewsByHead(q)) {
      const headTensors = {
        dOut: viewHead(savedTensors.dOut),
        lse: viewHead(savedTensors.lse),
        delta: viewHead(savedTensors.delta),
      };
      const grads = { dq: viewHead(dq), dk: viewHead(dk), dv: viewHead(dv) };
      kernels.attendBackward(grads, viewHead(q), headTensors, { k: viewHead(k), v: viewHead(v) }, tile);
      report({ isBackward: true });
    }
  };
  return withOverrides(kernels, { attend, attendBackward });
}

/** Yields, for each head, a function that returns that head's view of a tensor [1,H,…]. Views last one iteration. */
function* viewsByHead(q: Tensor): Generator<(x: Tensor) => Tensor> {
  for (let head = 0; head < q.shape[1]!; head++) {
    const views: Tensor[] = [];
    yield (x) => {
      const view = x.slice(1, head, head + 1);
      views.push(view);
      return view;
    };
    for (const view of views) view[Symbol.dispose]();
  }
}

/** Returns a proxy of `base` in which `members` replace its own. */
function withOverrides<T extends object>(base: T, members: Partial<T>): T {
  return new Proxy(base, {
    get(target, name) {
      if (Object.hasOwn(members, name)) return members[name as keyof T];
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}
