import { zeros } from "@mosaic/core";
import { symbolicWorld } from "@mosaic/planner";
import { expect, test } from "vitest";
import { type ChosenChunks, HierarchicalMetaAttention } from "../src/index.ts";

const tracedNames = ["sendRecv", "wait", "attend", "attendBackward"];

test("chunks are transferred during local attention, and their gradients during the local backward", async () => {
  const chosen: ChosenChunks = [Array.from({ length: 3 }, (_, i) => [(i + 1) % 3])];
  const { contexts } = symbolicWorld({ mesh: { sp: 3 } });
  for (const combine of ["soft", "exact"] as const) {
    for (const ctx of contexts) {
      using module = new HierarchicalMetaAttention(ctx, { embedDim: 16, numHeads: 2, combine, topK: 1 });
      using x = zeros(ctx, [1, 64, 16]);
      let numSeen = 0;
      const listNewCalls = () => {
        const tracedCalls: string[] = [];
        const event = ctx.device.record.read();
        while (event.next()) if (tracedNames.includes(event.op)) tracedCalls.push(event.op);
        const newCalls = tracedCalls.slice(numSeen);
        numSeen = tracedCalls.length;
        return newCalls;
      };
      listNewCalls();
      using result = await module.forward(x, { chosen, dryRun: true });
      // The first wait is that for the gather of summaries, on which everything else depends.
      expect(listNewCalls()).toEqual(["wait", "sendRecv", "attend", "wait", "attend"]);
      using dOut = zeros(ctx, x.shape);
      result.out.backward(dOut);
      expect(listNewCalls()).toEqual(["attendBackward", "sendRecv", "attendBackward", "wait", "wait"]);
    }
  }
});
