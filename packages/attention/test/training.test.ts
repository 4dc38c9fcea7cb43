import { describe, expect, it } from "vitest";
import type { Coordinate } from "../src/core.ts";
import * as mosaic from "../src/index.ts";

// Shapes: B samples, S positions, E embedding.

const [B, S, E] = [4, 12, 16];
const ATTENTION = { embedDim: E, numHeads: 4, numKvHeads: 2, attentionAxis: 1, causal: true } as const;

interface StepResult {
  readonly loss: number;
  readonly gradients: Readonly<Record<string, Float32Array>>;
}

interface Way {
  readonly placement: mosaic.PlacementName;
  readonly backend: string;
}

/** The whole batch, the same on every rank. */
function batch(ctx: mosaic.Context): { x: mosaic.Tensor; target: mosaic.Tensor } {
  const draw = (stream: number): mosaic.Tensor => mosaic.randn(ctx, [B, S, E], { seed: 11, stream });
  return { x: draw(1), target: draw(2) };
}

/** This rank's samples and positions. */
function mine(ctx: mosaic.Context, whole: mosaic.Tensor, placement: mosaic.PlacementName): mosaic.Tensor {
  const samples = B / ctx.mesh.shape["dp"]!;
  const first = ctx.mesh.coordinate["dp"]! * samples;
  using own = whole.slice(0, first, first + samples);
  return mosaic.shard(ctx, own, 1, { placement });
}

/** Mean squared error over the samples of a "dp" group: a rank's loss is its part of that mean. */
async function trainingStep(ctx: mosaic.Context, { placement, backend }: Way): Promise<StepResult> {
  using attn = new mosaic.MultiAxisAttention(ctx, {
    ...ATTENTION,
    backend,
    placement,
    sequenceLength: S,
  });
  const { x, target } = batch(ctx);
  using own = mine(ctx, x, placement);
  using wanted = mine(ctx, target, placement);
  using out = attn.forward(own);
  using difference = mosaic.sub(out, wanted);
  using squares = mosaic.square(difference);
  using total = mosaic.sum(squares);
  using loss = mosaic.scale(total, ctx.mesh.shape["dp"]! / (B * S * E));
  loss.backward();
  mosaic.reduceGradients(ctx, attn);
  using reported = loss.detach().reshape([1]);
  ctx.mesh.group("sp").allReduce(reported, "sum").wait();
  ctx.mesh.group("dp").allReduce(reported, "mean").wait();
  const gradients = await Promise.all(
    attn.namedParameters().map(async ([name, { grad }]) => [name, await grad!.read()] as const),
  );
  return { loss: await reported.item(), gradients: Object.fromEntries(gradients) };
}

async function onMesh(mesh: Coordinate, way: Way): Promise<readonly StepResult[]> {
  const size = Object.values(mesh).reduce((product, length) => product * length, 1);
  const contexts = await mosaic.world(size, { mesh, seed: 5 });
  try {
    return await Promise.all(contexts.map((ctx) => trainingStep(ctx, way)));
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

/** The largest difference, in units of the largest element. */
function relativeError(values: Float32Array, truth: Float32Array): number {
  const largest = truth.reduce((max, value) => Math.max(max, Math.abs(value)), 0);
  return truth.reduce((max, value, i) => Math.max(max, Math.abs(value - values[i]!)), 0) / largest;
}

describe("a training step", () => {
  it.each([
    [
      { dp: 1, sp: 3 },
      { placement: "contiguous", backend: "ring" },
    ],
    [
      { dp: 2, sp: 1 },
      { placement: "contiguous", backend: "ring" },
    ],
    [
      { dp: 2, sp: 2 },
      { placement: "zigzag", backend: "ring" },
    ],
    [
      { dp: 4, sp: 2 },
      { placement: "striped", backend: "ring" },
    ],
    [
      { sp: 5, dp: 1 },
      { placement: "zigzag", backend: "ring" },
    ],
    [
      { dp: 1, sp: 4 },
      { placement: "zigzag", backend: "mesh2d" },
    ],
    [
      { dp: 2, sp: 3 },
      { placement: "contiguous", backend: "mesh2d" },
    ],
    [
      { dp: 1, sp: 4 },
      { placement: "contiguous", backend: "ulysses" },
    ],
    [
      { dp: 2, sp: 3 },
      { placement: "zigzag", backend: "ulysses" },
    ],
    [
      { dp: 2, sp: 3 },
      { placement: "zigzag", backend: "flex" },
    ],
  ] as const)("on %j, %j, has the loss and the gradients of one device", async (mesh, way) => {
    const [alone] = await onMesh({ dp: 1, sp: 1 }, { placement: "contiguous", backend: "ring" });
    for (const rank of await onMesh(mesh, way)) {
      expect(rank.loss).toBeCloseTo(alone!.loss, 5);
      expect(Object.keys(rank.gradients)).toEqual(Object.keys(alone!.gradients));
      for (const [name, gradient] of Object.entries(alone!.gradients)) {
        expect(relativeError(rank.gradients[name]!, gradient)).toBeLessThan(5e-6);
      }
    }
  });

  it("gives every rank the same bits", async () => {
    const ranks = await onMesh({ dp: 2, sp: 2 }, { placement: "zigzag", backend: "ring" });
    for (const rank of ranks) expect(rank).toEqual(ranks[0]);
  });
});
