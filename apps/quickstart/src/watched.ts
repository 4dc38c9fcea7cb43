import type { AttentionBackend, Context, Tensor } from "@mosaic/attention";

/** A piece of attention: one head of one block. */
export interface Step {
  readonly backward: boolean;
}

export interface Watcher {
  /** The device did it. */
  finished(step: Step): void;
}

/**
 * `inner`, head by head, telling how far the device is. A backend takes an inner backend, so this works inside any of
 * them; heads are independent, so the results are the same bits. The host waits for nothing: a step is finished when
 * the stream's synchronize, asked for right behind it, resolves.
 */
export function watched(inner: AttentionBackend, watcher: Watcher): AttentionBackend {
  const tell = (ctx: Context, step: Step): void => {
    // A failed stream is reported by whoever reads the result.
    ctx.device.stream.synchronize().then(
      () => watcher.finished(step),
      () => {},
    );
  };
  return {
    name: inner.name,
    axes: inner.axes,
    attend(ctx, call, { out, lse }, keys) {
      for (const head of heads(call.q)) {
        const state = { out: head(out), lse: head(lse) };
        inner.attend(ctx, { ...call, q: head(call.q) }, state, { ...keys, k: head(keys.k), v: head(keys.v) });
        tell(ctx, { backward: false });
      }
    },
    attendBackward(ctx, call, { dq, dk, dv }, keys) {
      for (const head of heads(call.q)) {
        const rows = { q: head(call.q), dOut: head(call.dOut), lse: head(call.lse), delta: head(call.delta) };
        const grads = { dq: head(dq), dk: head(dk), dv: head(dv) };
        inner.attendBackward(ctx, { ...call, ...rows }, grads, { ...keys, k: head(keys.k), v: head(keys.v) });
        tell(ctx, { backward: true });
      }
    },
  };
}

/** For each head a way to view tensors [1,H,…] at that head alone; the views end with the turn of the loop. */
function* heads(q: Tensor): Generator<(x: Tensor) => Tensor> {
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
