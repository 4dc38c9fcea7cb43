import { type Context, Linear, OutOfMemoryError } from "@mosaic/core";
import { expect, test, vi } from "vitest";
import { AdamW, fullyShard, KvCache, Sequential } from "../src/index.ts";
import { onMesh } from "./reference/world.ts";

const cases: Readonly<Record<string, (ctx: Context, model: Sequential) => Disposable>> = {
  KvCache: (ctx) => new KvCache(ctx, { numKvHeads: 2, headDim: 8, maxTokens: 64 }),
  "an optimizer": (_, model) => new AdamW(model),
  "fullyShard, stage 3": (ctx, model) => fullyShard(ctx, model, { units: [] }),
};

test.each(Object.entries(cases))(
  "%s that runs out of memory during creation leaves nothing allocated",
  async (_, create) => {
    await onMesh({ dp: 2 }, async (ctx) => {
      const { device } = ctx;
      for (let numAllocations = 0; ; numAllocations++) {
        using model = new Sequential(
          new Linear(ctx, 4, 3, { dtype: "bfloat16" }),
          new Linear(ctx, 3, 2, { dtype: "bfloat16" }),
        );
        await device.stream.synchronize();
        const { allocated } = device.memory();
        const allocate = device.empty.bind(device);
        let allocationsLeft = numAllocations;
        const empty = vi.spyOn(device, "empty").mockImplementation((...args) => {
          if (allocationsLeft-- > 0) return allocate(...args);
          throw new OutOfMemoryError({ where: "empty" });
        });
        try {
          create(ctx, model)[Symbol.dispose]();
          expect(numAllocations).toBeGreaterThan(1);
          return;
        } catch (error) {
          expect(error).toBeInstanceOf(OutOfMemoryError);
        } finally {
          empty.mockRestore();
        }
        await device.stream.synchronize();
        expect(device.memory().allocated).toBe(allocated);
      }
    });
  },
);
