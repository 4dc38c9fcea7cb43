import { ring } from "@mosaic/backend-ring";
import { alongOneAxis, backendSuite } from "@mosaic/conformance";
import { type AttentionBackend, emptyState, zeros } from "@mosaic/core";
import { expect, test } from "vitest";
import { makeWorld } from "../../../vitest.world.ts";

const validBackend = ring();

/** Returns the case of the backend suite that calls the backend as an inner one. */
function findFoldingCase(backend: AttentionBackend) {
  const cases = backendSuite({ makeWorld, arrangements: alongOneAxis(() => backend, [2]), dtypes: ["float32"] });
  return cases.find(({ name }) => name.includes("folds into an existing state"))!;
}

const faultyBackends: Readonly<Record<string, readonly [Partial<AttentionBackend>, RegExp]>> = {
  "overwrites the initial state": [
    {
      attend(ctx, call, { out, lse }, kv) {
        const { kernels } = ctx.device;
        kernels.fill(out, 0);
        kernels.fill(lse, Number.NEGATIVE_INFINITY);
        validBackend.attend(ctx, call, { out, lse }, kv);
      },
    },
    /added to the initial values: out: largest error/,
  ],
  "merges the initial state twice": [
    {
      attend(ctx, call, state, kv) {
        const { kernels } = ctx.device;
        using out = zeros(ctx, state.out.shape);
        using lse = zeros(ctx, state.lse.shape);
        kernels.copy(out, state.out);
        kernels.copy(lse, state.lse);
        validBackend.attend(ctx, call, state, kv);
        kernels.merge(state, { out, lse });
      },
    },
    /added to the initial values: out: largest error/,
  ],
  "overwrites gradients instead of adding to them": [
    {
      attendBackward(ctx, call, grads, kv) {
        for (const grad of [grads.dq, grads.dk, grads.dv]) ctx.device.kernels.fill(grad, 0);
        validBackend.attendBackward(ctx, call, grads, kv);
      },
    },
    /added to the initial values: dq: largest error/,
  ],
  "overwrites the caller's keys": [
    {
      attendBackward(ctx, call, grads, kv) {
        validBackend.attendBackward(ctx, call, grads, kv);
        ctx.device.kernels.fill(kv.k, 0);
      },
    },
    /: input k after the pass: element 0 is 0/,
  ],
  "keeps memory": [
    {
      attend(ctx, call, state, kv) {
        retainedValues.push(emptyState(call.q));
        validBackend.attend(ctx, call, state, kv);
      },
    },
    /expected 0 more bytes allocated after the pass, received \d+; release temporaries with scope.*, views too/,
  ],
};

const retainedValues: unknown[] = [];

test.each(Object.entries(faultyBackends))("the suite rejects a backend that %s", async (_, [fault, message]) => {
  await expect(findFoldingCase({ ...validBackend, ...fault }).run()).rejects.toThrow(message);
});

test("the suite accepts the valid backend", () => findFoldingCase(validBackend).run());
