import { type AttentionBackend, tileOf } from "./backend.ts";

/** The device's own kernel on the keys at hand: what every other backend ends in. Communicates nothing. */
export function local(): AttentionBackend {
  return {
    name: "local",
    axes: [],
    attend(ctx, call, state, keys) {
      ctx.device.kernels.attend(state, call.q, keys, tileOf(call, keys));
    },
    attendBackward(ctx, call, grads, keys) {
      ctx.device.kernels.attendBackward(grads, call.q, call, keys, tileOf(call, keys));
    },
  };
}
