import { disturbed, onWorld } from "@mosaic/conformance";
import {
  type AttentionBackend,
  type Context,
  emptyState,
  full,
  layoutOf,
  local,
  type ProcessGroup,
  randn,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { type Mesh2DOptions, mesh2d } from "../src/index.ts";
import { makeWorld } from "./world.ts";

const tokens = 24;

/** One forward over all tokens, and a backward if wanted; gives back all that it made. */
function attendOnce(ctx: Context, backend: AttentionBackend, backward = false): void {
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: tokens });
  const at = ctx.mesh.coordinate;
  using q = randn(ctx, [1, 2, tokens / ctx.size, 4]);
  const { out, lse } = emptyState(q);
  try {
    const call = { q, at, scale: 0.5, mask: full().slices(tokens, tokens), queries: layout, keys: layout };
    const keys = { k: q, v: q, from: at };
    backend.attend(ctx, call, { out, lse }, keys);
    const saved = { dOut: q, lse, delta: lse };
    if (backward) backend.attendBackward(ctx, { ...call, ...saved }, { dq: out, dk: out, dv: out }, keys);
  } finally {
    out.dispose();
    lse.dispose();
  }
}

/** The same rank, which says what it posts, computes and waits for, in order. */
function heardOf(
  ctx: Context,
  options: Pick<Mesh2DOptions, "shape" | "form" | "channels" | "computeToTransfer">,
): string[] {
  const heard: string[] = [];
  const rank = disturbed(ctx, { arrival: "soon", seed: 1 });
  const group = rank.mesh.group("sp");
  let posts = 0;
  const sendRecv: ProcessGroup["sendRecv"] = (...given) => {
    const number = ++posts;
    heard.push(`post ${number}`);
    const work = group.sendRecv(...given);
    return {
      wait() {
        heard.push(`wait ${number}`);
        work.wait();
      },
    };
  };
  const { name, size, ranks, device } = group;
  const observed = { name, rank: group.rank, size, ranks, device, sendRecv } as unknown as ProcessGroup;
  const inner: AttentionBackend = {
    ...local(),
    attend(...given) {
      heard.push("block");
      local().attend(...given);
    },
  };
  attendOnce({ ...rank, mesh: { ...rank.mesh, group: () => observed } }, mesh2d({ ...options, inner }));
  return heard;
}

const orders = [
  // Two rows of queries and one of keys come in while the first blocks run; two rows of out leave behind later ones.
  "post 1, post 2, post 3, block, wait 1, block, wait 2, block, post 4, wait 3, block, block, post 5, block, wait 4, wait 5",
  // The first row comes in beside the keys, and transfers count for more.
  "post 1, post 2, block, wait 1, block, block, post 3, wait 2, block, block, post 4, block, wait 3, wait 4",
];

test.each([1, 2] as const)(
  "transfers are posted ahead of the blocks that they hide behind, the same on every rank, channels: %d",
  async (channels) => {
    const heard = await onWorld(makeWorld, { size: 6 }, async (ctx) => {
      const order = heardOf(ctx, { shape: [2, 3], form: "scheduled", channels, computeToTransfer: 1 / channels });
      await ctx.device.stream.synchronize();
      return order;
    });
    for (const each of heard) expect(each.join(", ")).toBe(orders[channels - 1]);
  },
);

test("the fused form computes once, between two batches", async () => {
  await onWorld(makeWorld, { size: 4 }, async (ctx) => {
    const heard = heardOf(ctx, { shape: [2, 2], form: "fused" });
    await ctx.device.stream.synchronize();
    expect(heard).toEqual(["post 1", "wait 1", "block", "post 2", "wait 2"]);
  });
});

for (const options of [{ form: "fused" }, { form: "scheduled" }, { form: "scheduled", channels: 2 }] as const) {
  const title = Object.values(options).join(", ");
  test(`${title}: nothing is under way afterwards, and no memory is kept`, async () => {
    await onWorld(makeWorld, { size: 6 }, async (ctx) => {
      const rank = disturbed(ctx, { arrival: "soon", seed: 1 });
      const { allocated } = ctx.device.memory();
      attendOnce(rank, mesh2d({ shape: [3, 2], ...options }), true);
      expect(rank.underWay()).toBe(0);
      await ctx.device.stream.synchronize();
      expect(ctx.device.memory().allocated).toBe(allocated);
    });
  });

  test(`${title}: nor if a kernel throws`, async () => {
    await onWorld(makeWorld, { size: 4 }, async (ctx) => {
      const rank = disturbed(ctx, { arrival: "late", seed: 1 });
      const { allocated } = ctx.device.memory();
      const inner: AttentionBackend = {
        ...local(),
        attend() {
          throw new Error("in the kernel");
        },
      };
      expect(() => attendOnce(rank, mesh2d({ shape: [2, 2], ...options, inner }))).toThrow("in the kernel");
      expect(rank.underWay()).toBe(0);
      await ctx.device.stream.synchronize();
      expect(ctx.device.memory().allocated).toBe(allocated);
    });
  });
}
