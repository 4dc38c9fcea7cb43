import { agreementSuite } from "@mosaic/conformance";
import { type AttentionBackend, attention, CollectiveMismatchError, layoutOf, randn } from "@mosaic/core";
import { expect, test } from "vitest";
import { mesh2d } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(agreementSuite({ makeWorld, backend: (axis) => mesh2d({ axis }) }));

/** Returns the error of a world of two ranks that use different backends. */
async function catchDisagreement(backends: readonly AttentionBackend[]): Promise<string> {
  const contexts = await makeWorld(2, { wrapDevice: (device) => device });
  const reads = contexts.map(async (ctx, rank) => {
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 8 });
    const x = randn(ctx, [1, 2, 4, 8]);
    // The rank that is second throws; the promise of the first one rejects.
    return attention(ctx, x, x, x, { backend: backends[rank]!, queries: layout, keys: layout }).read();
  });
  const [first] = await Promise.allSettled(reads);
  await Promise.allSettled(contexts.map((ctx) => ctx.close()));
  const { reason } = first as PromiseRejectedResult;
  expect(reason).toBeInstanceOf(CollectiveMismatchError);
  return (reason as Error).message;
}

test("the error of ranks with different options names these options", async () => {
  const message = await catchDisagreement([mesh2d({ shape: [1, 2] }), mesh2d({ shape: [2, 1] })]);
  expect(message).toContain("rank 0 is at call #2 (world): attention by mesh2d(sp, shape 1×2, schedule auto, ");
  expect(message).toContain("rank 1 at call #2 (world): attention by mesh2d(sp, shape 2×1, schedule auto, ");
  const scheduleMessage = await catchDisagreement([
    mesh2d({ schedule: "fused" }),
    mesh2d({ schedule: "overlapped", channels: 2 }),
  ]);
  expect(scheduleMessage).toContain("by mesh2d(sp, schedule fused): ");
  expect(scheduleMessage).toContain(
    "by mesh2d(sp, schedule overlapped, channels 2, compute-to-transfer ratio 1, links 1:1): ",
  );
});
