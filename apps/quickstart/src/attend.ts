import * as mosaic from "@mosaic/attention";
import { positions } from "@mosaic/attention/core";
import { configureBackend, createLayout, getMask } from "./backends.ts";
import { Embedder, readGenome } from "./embed.ts";
import type { RankReport, Results, Settings } from "./job.ts";
import { cotangent } from "./reference.ts";
import { type ProgressListener, wrapWithProgress } from "./progress.ts";

export interface AttentionRun {
  readonly report: RankReport;
  readonly results: Results;
}

/**
 * Computes this rank's part of attention over the whole sequence. A context of one rank computes it on one device.
 * `onStep` is called for every completed step.
 */
export async function attend(ctx: mosaic.Context, settings: Settings, onStep: ProgressListener): Promise<AttentionRun> {
  const configuration = configureBackend(settings);
  const backend = wrapWithProgress(configuration.backend, onStep);
  const layout = createLayout(settings, configuration);
  const coordinate = ctx.mesh.coordinate;
  const spans = layout.spans(coordinate);
  using shard = new Shard(ctx, settings, positions(spans));
  const { q, k, v, dOut } = shard;

  await startMeasurement(ctx);
  const startTime = getMonotonicSeconds();
  using out = mosaic.attention(ctx, q, k, v, { backend, mask: getMask(settings), queries: layout, keys: layout });
  if (settings.backward) out.backward(dOut);
  await ctx.device.stream.synchronize();
  const endTime = getMonotonicSeconds();

  const bytesSent = totalBytesSent(ctx, backend.axes);
  const { peak: peakBytes } = ctx.device.memory();
  const events = await ctx.stopTrace();
  const results = await readTensors({ out, dq: q.grad, dk: k.grad, dv: v.grad });
  return {
    report: { rank: ctx.rank, coordinate, spans, begin: startTime, end: endTime, bytesSent, peakBytes, events },
    results,
  };
}

/** Returns the bytes sent along all mesh axes. Two axes may share a group, which is counted once. */
function totalBytesSent({ mesh }: mosaic.Context, axes: readonly string[]): number {
  const groups = [...new Set(axes.map((axis) => mesh.group(axis)))];
  return groups.reduce((sum, group) => sum + group.traffic().bytesSent, 0);
}

/** This rank's rows of q, k, v and of the gradient of the loss with respect to out, [1,H,S,D]. */
class Shard implements Disposable {
  readonly q: mosaic.Tensor;
  readonly k: mosaic.Tensor;
  readonly v: mosaic.Tensor;
  readonly dOut: mosaic.Tensor;

  constructor(ctx: mosaic.Context, settings: Settings, positions: Int32Array) {
    const shape = [1, settings.numHeads, positions.length, settings.headDim];
    const hostProjections = new Embedder(readGenome(), settings).projectPositions(positions);
    const toTensor = (values: Float32Array): mosaic.Tensor => {
      const tensor = mosaic.fromArray(ctx, values, shape, { dtype: settings.dtype });
      tensor.requiresGrad = settings.backward;
      return tensor;
    };
    this.q = toTensor(hostProjections.q);
    this.k = toTensor(hostProjections.k);
    this.v = toTensor(hostProjections.v);
    this.dOut = settings.backward
      ? mosaic.fromArray(ctx, cotangent(settings, positions), shape, { dtype: settings.dtype })
      : mosaic.empty(ctx, [0], { dtype: settings.dtype });
  }

  [Symbol.dispose](): void {
    for (const tensor of [this.q, this.k, this.v, this.dOut]) {
      tensor.grad?.[Symbol.dispose]();
      tensor[Symbol.dispose]();
    }
  }
}

/** Starts clock and trace on all ranks at once, after each has its shard. Peak memory counts from the current usage. */
async function startMeasurement(ctx: mosaic.Context): Promise<void> {
  await ctx.device.stream.synchronize();
  ctx.device.resetPeakMemory();
  ctx.startTrace();
  ctx.world.barrier({ label: "start" }).wait();
  await ctx.device.stream.synchronize();
}

/** Returns seconds of CLOCK_MONOTONIC, which all processes of a host share. */
const getMonotonicSeconds = (): number => Number(process.hrtime.bigint()) / 1e9;

async function readTensors(tensors: Readonly<Record<string, mosaic.Tensor | null>>): Promise<Results> {
  const presentTensors = Object.entries(tensors).filter((entry): entry is [string, mosaic.Tensor] => entry[1] !== null);
  return Object.fromEntries(
    await Promise.all(presentTensors.map(async ([name, tensor]) => [name, await tensor.read()])),
  );
}
