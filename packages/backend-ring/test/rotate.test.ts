import { perturbContext, runOnWorld } from "@mosaic/conformance";
import { type Context, type KvBlock, type ProcessGroup, randn, type Tensor, type Work } from "@mosaic/core";
import { expect, test } from "vitest";
import { rotate, rotateGradients } from "../src/ring.ts";
import { createTable } from "./tables.ts";
import { makeWorld } from "../../../vitest.world.ts";

function createKv(ctx: Context): KvBlock {
  return { k: randn(ctx, [1, 1, 5, 2]), v: randn(ctx, [1, 1, 5, 2]) };
}

function createGrads(ctx: Context): { dk: Tensor; dv: Tensor } {
  return { dk: randn(ctx, [1, 1, 5, 2]), dv: randn(ctx, [1, 1, 5, 2]) };
}

/** Wraps a group so that it logs its posts and waits. */
function wrapWithLog(group: ProcessGroup, log: string[]): ProcessGroup {
  let posts = 0;
  return {
    ...group,
    rank: group.rank,
    size: group.size,
    device: group.device,
    sendRecv(transfers, options): Work {
      const postIndex = ++posts;
      log.push(`post ${postIndex}`);
      const work = group.sendRecv(transfers, options);
      return {
        wait() {
          log.push(`wait ${postIndex}`);
          work.wait();
        },
      };
    },
  };
}

test("the transfer for a step is posted before the work of the previous step, and waited for after it", async () => {
  const logs = await runOnWorld(makeWorld, { size: 4 }, async (ctx) => {
    const log: string[] = [];
    for (const { step } of rotate(wrapWithLog(ctx.world, log), createKv(ctx), createTable(4))) log.push(`step ${step}`);
    await ctx.device.stream.synchronize();
    return log.join(", ");
  });
  const expectedLog = "post 1, step 0, wait 1, post 2, step 1, wait 2, post 3, step 2, wait 3, step 3";
  expect(logs).toEqual([expectedLog, expectedLog, expectedLog, expectedLog]);
});

test("gradients of a step are sent while the next step computes", async () => {
  const logs = await runOnWorld(makeWorld, { size: 3 }, async (ctx) => {
    const log: string[] = [];
    const steps = rotate(ctx.world, createKv(ctx), createTable(3));
    const group = wrapWithLog(ctx.world, log);
    for (const { step } of rotateGradients(group, steps, createGrads(ctx), { dependencies: createTable(3) }))
      log.push(`step ${step}`);
    await ctx.device.stream.synchronize();
    return log.join(", ");
  });
  const expectedLog = "step 0, step 1, post 1, step 2, wait 1, post 2, wait 2";
  expect(logs).toEqual([expectedLog, expectedLog, expectedLog]);
});

test("received keys alternate between two buffers besides the local keys", async () => {
  await runOnWorld(makeWorld, { size: 5 }, async (ctx) => {
    const handles: bigint[] = [];
    for (const { k } of rotate(ctx.world, createKv(ctx), createTable(5))) handles.push(k.storage.handle);
    expect(handles[1]).toBe(handles[3]);
    expect(handles[2]).toBe(handles[4]);
    expect(new Set(handles).size).toBe(3);
    await ctx.device.stream.synchronize();
  });
});

test("a single rank attends to its keys in place, without a buffer", async () => {
  await runOnWorld(makeWorld, { size: 1 }, async (ctx) => {
    const kv = createKv(ctx);
    const { allocated } = ctx.device.memory();
    for (const { k, v } of rotate(ctx.world, kv, createTable(1))) {
      expect([k.storage.handle, v.storage.handle]).toEqual([kv.k.storage.handle, kv.v.storage.handle]);
      expect(ctx.device.memory().allocated).toBe(allocated);
    }
  });
});

test("a full ring's gradients need three buffers: two to compute in and one to receive in", async () => {
  await runOnWorld(makeWorld, { size: 4 }, async (ctx) => {
    const [kv, grads] = [createKv(ctx), createGrads(ctx)];
    const { allocated } = ctx.device.memory();
    let maxBytes = 0;
    for (const _ of rotateGradients(ctx.world, rotate(ctx.world, kv, createTable(4)), grads, {
      dependencies: createTable(4),
    })) {
      maxBytes = Math.max(maxBytes, ctx.device.memory().allocated - allocated);
    }
    await ctx.device.stream.synchronize();
    const chunkBytes = allocated / 2; // only keys and gradients were allocated before
    expect(maxBytes).toBe((2 + 3) * chunkBytes);
    expect(ctx.device.memory().allocated).toBe(allocated);
  });
});

test("leaving the loop early leaves no transfer in flight, and frees all memory", async () => {
  await runOnWorld(makeWorld, { size: 3 }, async (ctx) => {
    const perturbedCtx = perturbContext(ctx, { completion: "soon", seed: 1 });
    const [kv, grads] = [createKv(ctx), createGrads(ctx)];
    const { allocated } = ctx.device.memory();
    const rotateKeys = () => rotate(perturbedCtx.world, kv, createTable(3));
    const rotateBackward = () =>
      rotateGradients(perturbedCtx.world, rotateKeys(), grads, { dependencies: createTable(3) });
    for (const { step } of rotateKeys()) if (step === 1) break;
    expect(perturbedCtx.numInFlight()).toBe(0);
    for (const { step } of rotateBackward()) if (step === 1) break;
    expect(perturbedCtx.numInFlight()).toBe(0);
    expect(() => {
      for (const { step } of rotateBackward()) if (step === 1) throw new Error("in the loop");
    }).toThrow("in the loop");
    expect(perturbedCtx.numInFlight()).toBe(0);
    await ctx.device.stream.synchronize();
    expect(ctx.device.memory().allocated).toBe(allocated);
  });
});

test("strided keys are copied only if another rank requires them", async () => {
  await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    const storedKeys = randn(ctx, [1, 5, 2, 2]);
    const stridedKeys = storedKeys.permute([0, 2, 1, 3]);
    const getFirstHandle = (needs?: () => boolean): bigint => {
      const steps = rotate(ctx.world, { k: stridedKeys, v: stridedKeys }, createTable(2, needs));
      const handle = steps.next().value!.k.storage.handle;
      steps.return();
      return handle;
    };
    expect(getFirstHandle()).not.toBe(storedKeys.storage.handle);
    expect(getFirstHandle(() => false)).toBe(storedKeys.storage.handle);
    await ctx.device.stream.synchronize();
  });
});
