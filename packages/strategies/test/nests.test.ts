import { flex } from "@mosaic/backend-flex";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { backendSuite, runOnWorld } from "@mosaic/conformance";
import { type AttentionBackend, attention, layoutOf, masks, OptionError, randn } from "@mosaic/core";
import { expect, test } from "vitest";
import { nestedArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(backendSuite({ makeWorld, arrangements: nestedArrangements, dtypes: ["float32"], coverage: "pairs" }));

// `ulysses` requires the axes of its inner backend before its own.
const inner = ulysses({ axis: "gpu", inner: ring({ axis: "rack" }) });

test.each<[string, AttentionBackend]>([
  ["ring", ring({ axis: "node", inner })],
  ["flex", flex({ axis: "node", inner })],
])(
  "ulysses inside %s rejects layouts with another order of axes, on every rank and before anything is sent",
  async (_, backend) => {
    await runOnWorld(makeWorld, { size: 4, mesh: { rack: 1, node: 2, gpu: 2 } }, async (ctx) => {
      const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["node", "gpu", "rack"], length: 8 });
      using x = randn(ctx, [1, 2, 2, 4]);
      // The ranks of the first node attend to no key, so they do not call the inner backend.
      const mask = masks.fromSlices([{ q0: 4, q1: 8, k0: 0, k1: 8, type: "full" }]);
      const call = () => attention(ctx, x, x, x, { backend, mask, queries: layout, keys: layout });
      expect(call).toThrow(OptionError);
      expect(call).toThrow(
        "expected queries sharded along rack, gpu, in this order, received queries sharded along node, gpu, rack",
      );
      await ctx.device.stream.synchronize();
      expect(ctx.mesh.group("node").traffic().messagesSent).toBe(0);
    });
  },
);
