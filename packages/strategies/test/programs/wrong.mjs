// A backend that computes its own keys only. A candidate must not be trusted without a proof.
export default () => ({
  name: "forgetful",
  axes: ["sp"],
  attend(ctx, call, state, keys) {
    const tile = { q: call.queries.spans(call.at), k: call.keys.spans(keys.from), mask: call.mask, scale: call.scale };
    ctx.device.kernels.attend(state, call.q, keys, tile);
  },
  attendBackward(ctx, call, grads, keys) {
    const tile = { q: call.queries.spans(call.at), k: call.keys.spans(keys.from), mask: call.mask, scale: call.scale };
    ctx.device.kernels.attendBackward(grads, call.q, call, keys, tile);
  },
});
