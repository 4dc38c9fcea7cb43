import { type AttentionBackend, tileOf } from "./backend.ts";

/** The device's own kernel on the keys at hand: what every other backend ends in. Communicates nothing. */
export function local(): AttentionBackend {
  return {
    name: "local",
    axes: [],
    attend(ctx, call, state, kv) {
      ctx.device.kernels.attend(state, call.q, kv, tileOf(call, kv));
    },
    attendBackward(ctx, call, grads, kv) {
      ctx.device.kernels.attendBackward(grads, call.q, call, kv, tileOf(call, kv));
    },
  };
}
