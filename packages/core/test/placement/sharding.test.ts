import { describe, expect, test } from "vitest";
import { attention } from "../../src/attention/attention.ts";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import { defineOp } from "../../src/autograd/define-op.ts";
import type { Context } from "../../src/context.ts";
import { fromArray, zeros } from "../../src/creation.ts";
import { ShapeError } from "../../src/errors.ts";
import type { Coordinate } from "../../src/mesh.ts";
import { CrossAxisAttention } from "../../src/modules/cross-axis-attention.ts";
import { Linear } from "../../src/modules/linear.ts";
import { MultiAxisAttention } from "../../src/modules/multi-axis-attention.ts";
import { MultiAxisAttention2D } from "../../src/modules/multi-axis-attention-2d.ts";
import { concatenate, roll, stack } from "../../src/ops/concatenate.ts";
import { layoutOf } from "../../src/placement/layout.ts";
import { contiguous, type Layout, type PlacementName, striped } from "../../src/placement/placement.ts";
import { shard, unshard } from "../../src/placement/shard.ts";
import type { Tensor } from "../../src/tensor.ts";
import { allGatherBackend, referenceWorld } from "../reference/index.ts";

const [batch, length, embedDim] = [2, 12, 8];
const backend = allGatherBackend();

/** Returns this rank's shard of [2,12,8] along axis 1. */
function shardInput(ctx: Context, placement: PlacementName = "zigzag"): Tensor {
  return shard(ctx, zeros(ctx, [batch, length, embedDim]), 1, { placement });
}

/** Returns the placements and axes that a tensor records, as [axis, positions of this rank]. */
function recorded(x: Tensor, ctx: Context): readonly unknown[] | null {
  return x.sharding?.map(({ axis, layout }) => [axis, layout.spans(ctx.mesh.coordinate)]) ?? null;
}

/** Asserts that a call throws the same ShapeError on every rank, before it communicates. */
function expectMismatch(contexts: readonly Context[], call: (ctx: Context) => unknown, message: RegExp): void {
  for (const ctx of contexts) {
    const sentBefore = ctx.world.traffic();
    expect(() => call(ctx)).toThrow(message);
    expect(() => call(ctx)).toThrow(ShapeError);
    expect(ctx.world.traffic()).toEqual(sentBefore);
  }
}

describe("a shard records its layout", () => {
  test("shard sets it, and unshard removes it", async () => {
    const contexts = await referenceWorld(2);
    const shards = contexts.map((ctx) => shardInput(ctx));
    expect(recorded(shards[0]!, contexts[0]!)).toEqual([
      [
        1,
        [
          { start: 0, length: 3, step: 1 },
          { start: 9, length: 3, step: 1 },
        ],
      ],
    ]);
    const gathered = contexts.map((ctx, i) => unshard(ctx, shards[i]!, 1, { placement: "zigzag" }));
    expect(gathered.map((x) => x.sharding)).toEqual([null, null]);
  });

  test("a tensor on one rank, and a tensor of unknown origin, record none", async () => {
    const [single] = await referenceWorld(1);
    expect(shardInput(single!).sharding).toBeNull();
    const [ctx] = await referenceWorld(2);
    expect(zeros(ctx!, [2, 6, 8]).sharding).toBeNull();
  });

  test.each<[string, (x: Tensor, ctx: Context) => Tensor, axis: number]>([
    ["add of a bias", (x, ctx) => x.add(zeros(ctx, [embedDim])), 1],
    ["mul of two shards", (x) => x.mul(x), 1],
    ["a number", (x) => x.add(1).mul(2).div(3).sub(4), 1],
    ["a function", (x) => x.silu().gelu().neg(), 1],
    ["softmax", (x) => x.softmax(), 1],
    ["linear", (x, ctx) => new Linear(ctx, embedDim, 3).forward(x), 1],
    ["matmul with a weight", (x, ctx) => x.matmul(zeros(ctx, [embedDim, 5])), 1],
    ["matmul of batches", (x) => x.transpose(1, 2).matmul(x), -1],
    ["matmul on the right", (x) => x.transpose(1, 2).unsqueeze(1).transpose(0, 1).select(0, 0).matmul(x), -1],
    ["norms", (x) => x.layerNorm().rmsNorm(), 1],
    ["a gate", (x) => x.gated(x), 1],
    ["permute", (x) => x.permute([1, 2, 0]), 0],
    ["transpose", (x) => x.transpose(1, 2), 2],
    ["splitting heads", (x) => x.reshape([batch, -1, 2, 4]).permute([0, 2, 1, 3]), 2],
    ["merging other axes", (x) => x.transpose(0, 1).reshape([6, -1]), 0],
    ["merging the sharded axis", (x) => x.reshape([-1, embedDim]), -1],
    ["unsqueeze before it", (x) => x.unsqueeze(0), 2],
    ["unsqueeze behind it", (x) => x.unsqueeze(2), 1],
    ["squeeze", (x) => x.unsqueeze(1).squeeze(1), 1],
    ["select of another axis", (x) => x.select(0, 1), 0],
    ["slice of another axis", (x) => x.slice(2, 0, 4), 1],
    ["slice of the sharded axis", (x) => x.slice(1, 0, 5), -1],
    ["slice of all local rows", (x) => x.slice(1, 0, 6), -1],
    ["expand", (x) => x.unsqueeze(0).expand([3, batch, 6, embedDim]), 2],
    ["detach, contiguous and to", (x) => x.detach().transpose(0, 1).contiguous().to("bfloat16"), 0],
    ["concatenate along another axis", (x) => concatenate([x, x], 2), 1],
    ["concatenate along the sharded axis", (x) => concatenate([x, x], 1), -1],
    ["stack", (x) => stack([x, x], 0), 2],
    ["a checkpoint", (x) => checkpoint((y) => y.mul(2), x), 1],
    ["a sum over the sharded axis", (x) => x.sum(1), -1],
  ])("%s", async (_, operation, expectedAxis) => {
    for (const ctx of await referenceWorld(2)) {
      const x = shardInput(ctx);
      const expected = expectedAxis < 0 ? null : [[expectedAxis, x.sharding![0]!.layout.spans(ctx.mesh.coordinate)]];
      expect(recorded(operation(x, ctx), ctx)).toEqual(expected);
    }
  });

  test("an operation defined without a rule records none", async () => {
    const copy = defineOp({
      name: "copy",
      forward: ([x]: [Tensor]) => ({ output: x.device.empty(x.shape, x.dtype), saved: {} }),
      backward: (_, dOut) => [dOut.detach()],
    });
    const [ctx] = await referenceWorld(2);
    expect(copy([shardInput(ctx!)], undefined).sharding).toBeNull();
  });
});

describe("a call with another layout throws on every rank before it communicates", () => {
  const attend = (ctx: Context, x: Tensor, placement?: PlacementName) =>
    new MultiAxisAttention(ctx, { embedDim, numHeads: 2, attentionAxis: 1, backend }).forward(x, {
      ...(placement && { placement }),
    });

  test.each([2, 3, 4])("attention on %i ranks", async (size) => {
    const contexts = await referenceWorld(size);
    expectMismatch(
      contexts,
      (ctx) => attend(ctx, shardInput(ctx)),
      /MultiAxisAttention, rank \d: expected 12 rows of axis 1 sharded over sp, contiguous: .*, received 12 rows of axis 1 sharded over sp, zigzag: .*; pass the placement/,
    );
    for (const out of contexts.map((ctx) => attend(ctx, shardInput(ctx), "zigzag")))
      expect(out.sharding?.[0]?.axis).toBe(1);
  });

  test("attention after other layers, along a negative axis and in two dimensions", async () => {
    const contexts = await referenceWorld(2);
    const settings = { embedDim, numHeads: 2, backend };
    const hidden = (ctx: Context) => new Linear(ctx, embedDim, embedDim).forward(shardInput(ctx)).silu().layerNorm();
    expectMismatch(
      contexts,
      (ctx) => new MultiAxisAttention(ctx, { ...settings, attentionAxis: -2 }).forward(hidden(ctx)),
      /received 12 rows of axis 1 sharded over sp, zigzag/,
    );
    expectMismatch(
      contexts,
      (ctx) => new MultiAxisAttention2D(ctx, { ...settings, axis1: 1, axis2: 2 }).forward(hidden(ctx).unsqueeze(2)),
      /MultiAxisAttention2D, rank \d: expected 12 rows of axis 1/,
    );
    expectMismatch(
      contexts,
      (ctx) =>
        new CrossAxisAttention(ctx, {
          ...settings,
          qAxis: 1,
          kvAxis: 1,
          placement: "zigzag",
          kvPlacement: "contiguous",
        }).forward(hidden(ctx), hidden(ctx)),
      /CrossAxisAttention: keys, rank \d/,
    );
  });

  test("the function attention, for queries and for keys", async () => {
    const contexts = await referenceWorld(2);
    const heads = (ctx: Context) => shardInput(ctx).reshape([batch, 6, 2, 4]).transpose(1, 2);
    const layout = (ctx: Context, placement: PlacementName): Layout =>
      layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], placement, length });
    const call = (queries: PlacementName, keys: PlacementName) => (ctx: Context) => {
      const [q, k] = [heads(ctx), heads(ctx)];
      return attention(ctx, q, k, k, { backend, queries: layout(ctx, queries), keys: layout(ctx, keys) });
    };
    expectMismatch(contexts, call("striped", "zigzag"), /gather\(sp\), rank \d: queries: expected .* striped/);
    expectMismatch(contexts, call("zigzag", "striped"), /gather\(sp\), rank \d: keys: expected .* striped/);
    const local = (ctx: Context) => attention(ctx, heads(ctx), heads(ctx), heads(ctx), { backend: "local" });
    expectMismatch(contexts, local, /expected all 6 rows of axis 2 on every rank, received 12 rows/);
    for (const out of contexts.map(call("zigzag", "zigzag"))) expect(out.sharding?.[0]?.axis).toBe(2);
  });

  test("attention along an axis, if another axis is sharded over the same ranks", async () => {
    const message = /expected 12 rows of axis 1 sharded over sp, .*, received 4 rows of axis 0 sharded over sp/;
    const contexts = await referenceWorld(2);
    expectMismatch(contexts, (ctx) => attend(ctx, shard(ctx, zeros(ctx, [4, 6, embedDim]), 0)), message);
    const mesh = { dp: 2, sp: 2 };
    const shardBoth = (ctx: Context) => shard(ctx, shard(ctx, zeros(ctx, [4, 8, embedDim]), 0, { axes: ["dp"] }), 1);
    for (const out of (await referenceWorld(4, { mesh })).map((ctx) => attend(ctx, shardBoth(ctx)))) {
      expect(out.sharding?.map(({ axis, layout }) => [axis, layout.axes])).toEqual([
        [0, ["dp"]],
        [1, ["sp"]],
      ]);
    }
  });

  test("unshard, of a shard and of a result of attention", async () => {
    const contexts = await referenceWorld(2);
    const message = /unshard, rank \d: expected .* contiguous: .*, received .* zigzag/;
    expectMismatch(contexts, (ctx) => unshard(ctx, shardInput(ctx), 1), message);
    // The shards are created on each rank, so that only attention records a layout.
    const outputs = contexts.map((ctx) => attend(ctx, zeros(ctx, [batch, 6, embedDim]), "zigzag"));
    expectMismatch(contexts, (ctx) => unshard(ctx, outputs[ctx.rank]!, 1), message);
    expectMismatch(contexts, (ctx) => unshard(ctx, shardInput(ctx), 0), /expected 4 rows of axis 0/);
  });

  test("operations on two tensors that are sharded differently", async () => {
    const contexts = await referenceWorld(3);
    const pair = (ctx: Context) => [shardInput(ctx), shardInput(ctx, "contiguous")] as const;
    const message = (name: string) => new RegExp(`^${name}: expected .* zigzag: .*, received .* contiguous: `);
    expectMismatch(contexts, (ctx) => pair(ctx)[0].add(pair(ctx)[1]), message("add"));
    expectMismatch(contexts, (ctx) => pair(ctx)[0].sub(pair(ctx)[1].select(0, 0)), message("sub"));
    expectMismatch(contexts, (ctx) => concatenate(pair(ctx), -1), message("concatenate"));
  });

  test("operations that would repeat the only row of a rank for all rows of another tensor", async () => {
    const contexts = await referenceWorld(2);
    const row = (ctx: Context) => shard(ctx, zeros(ctx, [2, 3]), 0);
    const message = (name: string) =>
      new RegExp(
        `^${name}: expected operands with 1 row along axis 0, .*, received .*\\[2,[13]\\].*; 2 rows of axis 0 sharded over sp`,
      );
    expectMismatch(contexts, (ctx) => row(ctx).add(zeros(ctx, [2, 3])), message("add"));
    expectMismatch(contexts, (ctx) => zeros(ctx, [2, 1]).mul(row(ctx)), message("mul"));
    for (const ctx of contexts)
      expect(
        row(ctx)
          .add(zeros(ctx, [1, 3]))
          .add(zeros(ctx, [3])).shape,
      ).toEqual([1, 3]);
  });

  test("roll, shard and softmax along an axis that is sharded", async () => {
    const contexts = await referenceWorld(2);
    const message = (name: string) =>
      new RegExp(`^${name}.*: expected all rows along axis 1 on this rank, received 12`);
    expectMismatch(contexts, (ctx) => roll(shardInput(ctx), -1, 1), message("roll"));
    expectMismatch(contexts, (ctx) => shard(ctx, shardInput(ctx), 1), message("shard"));
    expectMismatch(contexts, (ctx) => shardInput(ctx).softmax(-2), message("softmax"));
    for (const ctx of contexts) expect(roll(shardInput(ctx), -1, 2).sharding).not.toBeNull();
  });

  test.each<Coordinate>([
    { dp: 2, sp: 2 },
    { dp_replicate: 2, dp_shard: 2, sp: 2 },
  ])("mean, max and min over an axis that is sharded, unless over data-parallel axes, mesh %j", async (mesh) => {
    const contexts = await referenceWorld(
      Object.values(mesh).reduce((a, b) => a * b),
      { mesh },
    );
    const axes = Object.keys(mesh).filter((axis) => axis !== "sp");
    for (const name of ["mean", "max", "min"] as const) {
      const message = new RegExp(`^${name}: expected all rows along axis 1 on this rank, received 12 rows`);
      expectMismatch(contexts, (ctx) => shardInput(ctx)[name](), message);
      expectMismatch(contexts, (ctx) => shardInput(ctx)[name]([0, 1]), message);
    }
    for (const ctx of contexts) {
      expect(shardInput(ctx).mean([0, -1]).shape).toEqual([6]);
      expect(shardInput(ctx).sum().shape).toEqual([]);
      const samples = shard(ctx, zeros(ctx, [4, 3]), 0, { axes });
      expect([samples.sharding?.length, samples.mean().shape]).toEqual([1, []]);
      expect(shard(ctx, zeros(ctx, [4, 3]), 0).sharding?.[0]?.layout.axes).toEqual(["sp"]);
    }
  });
});

describe("permitted", () => {
  test("layouts of other identity that hold the same positions", async () => {
    const contexts = await referenceWorld(3, { mesh: { sp: 3, tp: 1 } });
    const positionsOnly: Layout = {
      length,
      axes: ["sp"],
      spans: ({ sp = 0 }) => Array.from({ length: 4 }, (_, i) => ({ start: sp + 3 * i, length: 1, step: 7 })),
    };
    for (const ctx of contexts) {
      const x = shard(ctx, zeros(ctx, [1, 1, length, 4]), 2, { placement: striped() });
      const out = attention(ctx, x, x, x, { backend, queries: positionsOnly, keys: positionsOnly });
      const equalParts = { placement: contiguous([4, 4, 4]), axes: ["sp", "tp"] } as const;
      const y = shard(ctx, zeros(ctx, [length]), 0);
      expect(y.add(shard(ctx, zeros(ctx, [length]), 0, equalParts)).shape).toEqual([4]);
      expect(out.sharding?.[0]?.layout).toBe(positionsOnly);
    }
  });

  test("rows that were rearranged, after sharding is set to null", async () => {
    const contexts = await referenceWorld(2);
    const data = Array.from({ length }, (_, i) => i);
    const shards = contexts.map((ctx) => {
      const x = shard(ctx, fromArray(ctx, data, [length]), 0, { placement: "zigzag" });
      x.sharding = null;
      return x;
    });
    const gathered = contexts.map((ctx, i) => unshard(ctx, shards[i]!, 0));
    expect([...(await gathered[0]!.read())]).toEqual([0, 1, 2, 9, 10, 11, 3, 4, 5, 6, 7, 8]);
    await gathered[1]!.read();
  });

  test("a shard along several mesh axes, one after the other", async () => {
    for (const ctx of await referenceWorld(4, { mesh: { node: 2, gpu: 2 } })) {
      const rows = shard(ctx, zeros(ctx, [8, 6]), 0, { axes: ["node"] });
      const tile = shard(ctx, rows, 1, { axes: ["gpu"] });
      expect(tile.sharding?.map(({ axis, layout }) => [axis, ...layout.axes])).toEqual([
        [0, "node"],
        [1, "gpu"],
      ]);
    }
  });
});
