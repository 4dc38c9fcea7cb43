import { perturbContext, runOnWorld } from "@mosaic/conformance";
import {
  type AttentionBackend,
  type Context,
  emptyState,
  blockwise,
  layoutOf,
  local,
  masks,
  type ProcessGroup,
  randn,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { type Mesh2DOptions, mesh2d } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

const tokens = 24;

/** Runs one forward over all tokens and, if `backward`, a backward. The keys are passed once for each part. */
function attendOnce(ctx: Context, backend: AttentionBackend, backward = false, numParts = 1): void {
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: tokens });
  const at = ctx.mesh.coordinate;
  using q = randn(ctx, [1, 2, tokens / ctx.size, 4]);
  const { out, lse } = emptyState(q);
  try {
    const call = { q, at, scale: 0.5, mask: masks.full().slices(tokens, tokens), queries: layout, keys: layout };
    const keys = { k: q, v: q, from: at };
    const coordinates = Array.from({ length: numParts }, () => at);
    using blockwiseAttention = blockwise(backend, coordinates);
    const savedRows = { dOut: q, lse, delta: lse };
    for (const _ of coordinates) blockwiseAttention.attend(ctx, call, { out, lse }, keys);
    if (!backward) return;
    for (const _ of coordinates)
      blockwiseAttention.attendBackward(ctx, { ...call, ...savedRows }, { dq: out, dk: out, dv: out }, keys);
  } finally {
    out.dispose();
    lse.dispose();
  }
}

/** Records the posts, blocks and waits of a rank, in order. */
function recordLog(
  ctx: Context,
  options: Pick<Mesh2DOptions, "shape" | "schedule" | "channels" | "computeToTransfer">,
  numParts = 1,
): string[] {
  const log: string[] = [];
  const rank = perturbContext(ctx, { completion: "soon", seed: 1 });
  const group = rank.mesh.group("sp");
  let posts = 0;
  const sendRecv: ProcessGroup["sendRecv"] = (...args) => {
    const postIndex = ++posts;
    log.push(`post ${postIndex}`);
    const work = group.sendRecv(...args);
    return {
      wait() {
        log.push(`wait ${postIndex}`);
        work.wait();
      },
    };
  };
  const { name, size, ranks, device } = group;
  const loggedGroup = { name, rank: group.rank, size, ranks, device, sendRecv } as unknown as ProcessGroup;
  const inner: AttentionBackend = {
    ...local(),
    attend(...args) {
      log.push("block");
      local().attend(...args);
    },
  };
  attendOnce(
    { ...rank, mesh: { ...rank.mesh, group: () => loggedGroup } },
    mesh2d({ ...options, inner }),
    false,
    numParts,
  );
  return log;
}

const orders = [
  // Two chunks of queries and one of keys are received while the first blocks run. Two rows of out are sent during
  // later blocks.
  "post 1, post 2, post 3, block, wait 1, block, wait 2, block, post 4, wait 3, block, block, post 5, block, wait 4, wait 5",
  // The first chunk of queries is received together with the keys, and transfers have a higher weight.
  "post 1, post 2, block, wait 1, block, block, post 3, wait 2, block, block, post 4, block, wait 3, wait 4",
];

test.each([1, 2] as const)(
  "transfers are posted before the blocks that hide them, in the same order on every rank, channels: %d",
  async (channels) => {
    const logs = await runOnWorld(makeWorld, { size: 6 }, async (ctx) => {
      const order = recordLog(ctx, {
        shape: [2, 3],
        schedule: "overlapped",
        channels,
        computeToTransfer: 1 / channels,
      });
      await ctx.device.stream.synchronize();
      return order;
    });
    for (const each of logs) expect(each.join(", ")).toBe(orders[channels - 1]);
  },
);

test("the fused schedule computes one block between two batches", async () => {
  await runOnWorld(makeWorld, { size: 4 }, async (ctx) => {
    const log = recordLog(ctx, { shape: [2, 2], schedule: "fused" });
    await ctx.device.stream.synchronize();
    expect(log).toEqual(["post 1", "wait 1", "block", "post 2", "wait 2"]);
  });
});

const twoPartLogs = {
  // Keys are received with both parts. Queries are received only with the first, and their sums are sent only with the
  // second.
  fused: "post 1, wait 1, block, post 2, wait 2, block, post 3, wait 3",
  overlapped:
    "post 1, post 2, block, wait 1, block, wait 2, block, block, " +
    "post 3, block, block, wait 3, block, post 4, block, wait 4",
} as const;

test.each(["fused", "overlapped"] as const)(
  "%s: keys are received in two parts, and queries once",
  async (schedule) => {
    await runOnWorld(makeWorld, { size: 4 }, async (ctx) => {
      const log = recordLog(ctx, { shape: [2, 2], schedule }, 2);
      await ctx.device.stream.synchronize();
      expect(log.join(", ")).toBe(twoPartLogs[schedule]);
    });
  },
);

test("the overlapped schedule releases received keys after their last block, and so requires less memory", async () => {
  await runOnWorld(makeWorld, { size: 6 }, async (ctx) => {
    const measurePeakBytes = (schedule: "fused" | "overlapped"): number => {
      ctx.device.resetPeakMemory();
      attendOnce(ctx, mesh2d({ shape: [6, 1], schedule }), true);
      return ctx.device.memory().peak;
    };
    expect(measurePeakBytes("overlapped")).toBeLessThan(measurePeakBytes("fused"));
    await ctx.device.stream.synchronize();
  });
});

for (const options of [
  { schedule: "fused" },
  { schedule: "overlapped" },
  { schedule: "overlapped", channels: 2 },
] as const) {
  const title = Object.values(options).join(", ");
  test(`${title}: no transfer is in flight afterwards, and all memory is freed`, async () => {
    await runOnWorld(makeWorld, { size: 6 }, async (ctx) => {
      const rank = perturbContext(ctx, { completion: "soon", seed: 1 });
      const { allocated } = ctx.device.memory();
      attendOnce(rank, mesh2d({ shape: [3, 2], ...options }), true);
      attendOnce(rank, mesh2d({ shape: [3, 2], ...options }), true, 3);
      expect(rank.numInFlight()).toBe(0);
      await ctx.device.stream.synchronize();
      expect(ctx.device.memory().allocated).toBe(allocated);
    });
  });

  test(`${title}: no transfer is in flight after a kernel throws, and all memory is freed`, async () => {
    await runOnWorld(makeWorld, { size: 4 }, async (ctx) => {
      const rank = perturbContext(ctx, { completion: "late", seed: 1 });
      const { allocated } = ctx.device.memory();
      let [numCalls, failingCall] = [0, 0];
      const inner: AttentionBackend = {
        ...local(),
        attend() {
          if (++numCalls === failingCall) throw new Error("in the kernel");
        },
      };
      for (failingCall of [1, 6]) {
        numCalls = 0;
        const backend = mesh2d({ shape: [2, 2], ...options, inner });
        expect(() => attendOnce(rank, backend, false, 2 + failingCall)).toThrow("in the kernel");
        expect(rank.numInFlight()).toBe(0);
      }
      await ctx.device.stream.synchronize();
      expect(ctx.device.memory().allocated).toBe(allocated);
    });
  });
}
