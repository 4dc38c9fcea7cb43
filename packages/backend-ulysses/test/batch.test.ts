import { batchSuite, runOnWorld } from "@mosaic/conformance";
import { attention, type AttentionBackend, layoutOf, local, randn } from "@mosaic/core";
import { expect, test } from "vitest";
import { ulysses } from "../src/index.ts";
import { nestedArrangements, singleAxisArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(batchSuite({ makeWorld, arrangements: singleAxisArrangements }));
register(batchSuite({ makeWorld, arrangements: nestedArrangements, dtypes: ["float32"] }));

test("the inner backend receives the origin of the rank's heads, and the masks of all samples", async () => {
  const descriptions: string[] = [];
  const localBackend = local();
  const inner: AttentionBackend = {
    ...localBackend,
    attend(ctx, call, state, kv) {
      const { origin, sampleMasks } = call.modifiers!;
      const heads = `${origin!.head} to ${origin!.head + call.q.shape[1]! - 1}`;
      descriptions.push(
        `rank ${ctx.rank}: heads ${heads}, samples from ${origin!.batch}, ${sampleMasks!.length} masks`,
      );
      localBackend.attend(ctx, call, state, kv);
    },
  };
  await runOnWorld(makeWorld, { size: 3, mesh: { sp: 3 } }, async (ctx) => {
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 12 });
    using q = randn(ctx, [2, 5, 4, 8]);
    using out = attention(ctx, q, q, q, {
      backend: ulysses({ inner }),
      lengths: { queries: [5, 12], keys: [5, 12] },
      queries: layout,
      keys: layout,
    });
    await out.read();
  });
  expect(descriptions.toSorted()).toEqual([
    "rank 0: heads 0 to 1, samples from 0, 2 masks",
    "rank 1: heads 2 to 3, samples from 0, 2 masks",
    "rank 2: heads 4 to 4, samples from 0, 2 masks",
  ]);
});
