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

interface TrainingSetup {
  readonly placement: mosaic.PlacementName;
  readonly backend: string;
}

/** Creates the whole batch, the same on every rank. */
function createBatch(ctx: mosaic.Context): { x: mosaic.Tensor; target: mosaic.Tensor } {
  const drawNormal = (stream: number): mosaic.Tensor => mosaic.randn(ctx, [B, S, E], { seed: 11, stream });
  return { x: drawNormal(1), target: drawNormal(2) };
}

/** Returns this rank's samples and positions. */
function sliceForRank(ctx: mosaic.Context, fullTensor: mosaic.Tensor, placement: mosaic.PlacementName): mosaic.Tensor {
  const samples = B / ctx.mesh.shape["dp"]!;
  const firstSample = ctx.mesh.coordinate["dp"]! * samples;
  using sampleShard = fullTensor.slice(0, firstSample, firstSample + samples);
  return mosaic.shard(ctx, sampleShard, 1, { placement });
}

/**
 * Runs one step with the mean squared error over the samples of a "dp" group. A rank's loss is its part of that mean.
 */
async function trainingStep(ctx: mosaic.Context, { placement, backend }: TrainingSetup): Promise<StepResult> {
  using attn = new mosaic.MultiAxisAttention(ctx, {
    ...ATTENTION,
    backend,
    placement,
    sequenceLength: S,
  });
  const { x, target } = createBatch(ctx);
  using localInput = sliceForRank(ctx, x, placement);
  using localTarget = sliceForRank(ctx, target, placement);
  using out = attn.forward(localInput);
  using difference = mosaic.sub(out, localTarget);
  using squares = mosaic.square(difference);
  using total = mosaic.sum(squares);
  using loss = mosaic.scale(total, ctx.mesh.shape["dp"]! / (B * S * E));
  loss.backward();
  mosaic.reduceGradients(ctx, attn);
  using reportedLoss = loss.detach().reshape([1]);
  ctx.mesh.group("sp").allReduce(reportedLoss, "sum").wait();
  ctx.mesh.group("dp").allReduce(reportedLoss, "mean").wait();
  const gradients = await Promise.all(
    attn.namedParameters().map(async ([name, { grad }]) => [name, await grad!.read()] as const),
  );
  return { loss: await reportedLoss.item(), gradients: Object.fromEntries(gradients) };
}

async function onMesh(mesh: Coordinate, setup: TrainingSetup): Promise<readonly StepResult[]> {
  const size = Object.values(mesh).reduce((product, length) => product * length, 1);
  const contexts = await mosaic.world(size, { mesh, seed: 5 });
  try {
    return await Promise.all(contexts.map((ctx) => trainingStep(ctx, setup)));
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

/** Returns the largest difference relative to the largest element. */
function relativeError(values: Float32Array, expected: Float32Array): number {
  const maxMagnitude = expected.reduce((max, value) => Math.max(max, Math.abs(value)), 0);
  return expected.reduce((max, value, i) => Math.max(max, Math.abs(value - values[i]!)), 0) / maxMagnitude;
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
    const [singleRankResult] = await onMesh({ dp: 1, sp: 1 }, { placement: "contiguous", backend: "ring" });
    for (const rank of await onMesh(mesh, way)) {
      expect(rank.loss).toBeCloseTo(singleRankResult!.loss, 5);
      expect(Object.keys(rank.gradients)).toEqual(Object.keys(singleRankResult!.gradients));
      for (const [name, gradient] of Object.entries(singleRankResult!.gradients)) {
        expect(relativeError(rank.gradients[name]!, gradient)).toBeLessThan(5e-6);
      }
    }
  });

  it("gives every rank the same loss and gradients bit for bit", async () => {
    const ranks = await onMesh({ dp: 2, sp: 2 }, { placement: "zigzag", backend: "ring" });
    for (const rank of ranks) expect(rank).toEqual(ranks[0]);
  });
});
