import { type Context, full, Linear, OutOfMemoryError } from "@mosaic/core";
import { expect, test, vi } from "vitest";
import { AdamW, fullyShard, KvCache, ScheduleFreeAdamW, Sequential } from "../src/index.ts";
import { onMesh, onOneRank } from "./reference/world.ts";

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

test("eval() of a schedule-free optimizer that runs out of memory changes nothing", () =>
  onOneRank(async (ctx) => {
    const { device } = ctx;
    using model = new Sequential(new Linear(ctx, 4, 3), new Linear(ctx, 3, 2, { dtype: "bfloat16" }));
    const parameters = model.parameters();
    const readParameters = () => Promise.all(parameters.map(async (each) => Array.from(await each.read())));
    using optimizer = new ScheduleFreeAdamW(model, { lr: 0.1 });
    for (const parameter of parameters) parameter.grad = full(ctx, parameter.shape, 1, { dtype: parameter.dtype });
    for (let step = 0; step < 3; step++) optimizer.step();
    const before = await readParameters();
    await device.stream.synchronize();
    const { allocated } = device.memory();
    const allocate = device.empty.bind(device);
    for (let numAllocations = 0; ; numAllocations++) {
      let allocationsLeft = numAllocations;
      const empty = vi.spyOn(device, "empty").mockImplementation((...args) => {
        if (allocationsLeft-- > 0) return allocate(...args);
        throw new OutOfMemoryError({ where: "empty" });
      });
      try {
        optimizer.eval();
        expect(numAllocations).toBeGreaterThan(parameters.length);
        break;
      } catch (error) {
        expect(error).toBeInstanceOf(OutOfMemoryError);
      } finally {
        empty.mockRestore();
      }
      expect(await readParameters()).toEqual(before);
      await device.stream.synchronize();
      expect(device.memory().allocated).toBe(allocated);
      // The optimizer is still in training mode.
      optimizer.stateDict();
    }
    const averages = await readParameters();
    for (const [i, values] of averages.entries()) expect(values).not.toEqual(before[i]);
    optimizer.train();
    expect(await readParameters()).toEqual(before);
    await device.stream.synchronize();
    expect(device.memory().allocated).toBe(allocated);
    optimizer.zeroGrad();
  }));
