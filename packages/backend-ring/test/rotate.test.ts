import { disturbed, onWorld } from "@mosaic/conformance";
import { type Context, type KvBlock, type ProcessGroup, randn, type Tensor, type Work } from "@mosaic/core";
import { expect, test } from "vitest";
import { carry } from "../src/carry.ts";
import type { Need } from "../src/need.ts";
import { type Circle, rotate } from "../src/rotate.ts";
import { makeWorld } from "./world.ts";

const everything = (size: number): Need => ({ size, fetches: () => true, visits: () => true, length: () => 5 });

function ringOn(ctx: Context, group: ProcessGroup = ctx.world): Circle {
  return { group, need: everything(ctx.size), label: "test" };
}

function keysOn(ctx: Context): KvBlock {
  return { k: randn(ctx, [1, 1, 5, 2]), v: randn(ctx, [1, 1, 5, 2]) };
}

function gradsOn(ctx: Context): { dk: Tensor; dv: Tensor } {
  return { dk: randn(ctx, [1, 1, 5, 2]), dv: randn(ctx, [1, 1, 5, 2]) };
}

/** The group, writing down when it is asked for something and when that is waited for. */
function overheard(group: ProcessGroup, said: string[]): ProcessGroup {
  let posts = 0;
  return {
    ...group,
    rank: group.rank,
    size: group.size,
    device: group.device,
    sendRecv(transfers, options): Work {
      const number = ++posts;
      said.push(`post ${number}`);
      const work = group.sendRecv(transfers, options);
      return {
        wait() {
          said.push(`wait ${number}`);
          work.wait();
        },
      };
    },
  };
}

test("the transfer for a step is posted before the work of the step before it, and waited for after it", async () => {
  const said = await onWorld(makeWorld, { size: 4 }, async (ctx) => {
    const heard: string[] = [];
    for (const { step } of rotate(ringOn(ctx, overheard(ctx.world, heard)), keysOn(ctx))) heard.push(`step ${step}`);
    await ctx.device.stream.synchronize();
    return heard.join(", ");
  });
  const order = "post 1, step 0, wait 1, post 2, step 1, wait 2, post 3, step 2, wait 3, step 3";
  expect(said).toEqual([order, order, order, order]);
});

test("gradients of a step travel while the next one computes", async () => {
  const said = await onWorld(makeWorld, { size: 3 }, async (ctx) => {
    const heard: string[] = [];
    const steps = rotate(ringOn(ctx), keysOn(ctx));
    const ring = ringOn(ctx, overheard(ctx.world, heard));
    for (const { step } of carry(ring, gradsOn(ctx), steps)) heard.push(`step ${step}`);
    await ctx.device.stream.synchronize();
    return heard.join(", ");
  });
  const order = "step 0, step 1, post 1, step 2, wait 1, post 2, wait 2";
  expect(said).toEqual([order, order, order]);
});

test("keys land in two buffers in turn, beside those of one's own", async () => {
  await onWorld(makeWorld, { size: 5 }, async (ctx) => {
    const handles: bigint[] = [];
    for (const { k } of rotate(ringOn(ctx), keysOn(ctx))) handles.push(k.storage.handle);
    expect(handles[1]).toBe(handles[3]);
    expect(handles[2]).toBe(handles[4]);
    expect(new Set(handles).size).toBe(3);
    await ctx.device.stream.synchronize();
  });
});

test("a full ring's gradients need three buffers: two to compute in and one to receive in", async () => {
  await onWorld(makeWorld, { size: 4 }, async (ctx) => {
    const [keys, grads] = [keysOn(ctx), gradsOn(ctx)];
    const { allocated } = ctx.device.memory();
    let most = 0;
    for (const _ of carry(ringOn(ctx), grads, rotate(ringOn(ctx), keys))) {
      most = Math.max(most, ctx.device.memory().allocated - allocated);
    }
    await ctx.device.stream.synchronize();
    const chunk = allocated / 2; // keys and gradients are all that there was
    expect(most).toBe((2 + 3) * chunk);
    expect(ctx.device.memory().allocated).toBe(allocated);
  });
});

test("a loop that is left early leaves nothing under way, and no memory", async () => {
  await onWorld(makeWorld, { size: 3 }, async (ctx) => {
    const rank = disturbed(ctx, { arrival: "soon", seed: 1 });
    const [keys, home] = [keysOn(ctx), gradsOn(ctx)];
    const { allocated } = ctx.device.memory();
    const ring = ringOn(ctx, rank.world);
    for (const { step } of rotate(ring, keys)) if (step === 1) break;
    expect(rank.underWay()).toBe(0);
    for (const { step } of carry(ring, home, rotate(ring, keys))) if (step === 1) break;
    expect(rank.underWay()).toBe(0);
    expect(() => {
      for (const { step } of carry(ring, home, rotate(ring, keys))) if (step === 1) throw new Error("in the loop");
    }).toThrow("in the loop");
    expect(rank.underWay()).toBe(0);
    await ctx.device.stream.synchronize();
    expect(ctx.device.memory().allocated).toBe(allocated);
  });
});

test("dense keys are sent as they lie; strided ones are copied once, and only if somebody needs them", async () => {
  await onWorld(makeWorld, { size: 2 }, async (ctx) => {
    const stored = randn(ctx, [1, 5, 2, 2]);
    const strided = stored.permute([0, 2, 1, 3]);
    const first = (need: Need): bigint => {
      const steps = rotate({ ...ringOn(ctx), need }, { k: strided, v: strided });
      const handle = steps.next().value!.k.storage.handle;
      steps.return();
      return handle;
    };
    expect(first(everything(2))).not.toBe(stored.storage.handle);
    const nothing = { ...everything(2), fetches: () => false, visits: () => false };
    expect(first(nothing)).toBe(stored.storage.handle);
    await ctx.device.stream.synchronize();
  });
});
