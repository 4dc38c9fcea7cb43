import * as mosaic from "@mosaic/attention";
import { positions, resolveSlices } from "@mosaic/attention/core";
import { launchRanks, throwIfFailed } from "@mosaic/program";
import { attend, type AttentionRun } from "./attend.ts";
import { getMask } from "./backends.ts";
import { Embedder, readGenome } from "./embed.ts";
import { type Job, type RankReport, readReport, readTensor, type Results, type Settings } from "./job.ts";
import { createProgressMeter } from "./progress.ts";
import type { Problem } from "./reference.ts";

/** Starts the ranks as processes, reads their progress, and returns the report of each. */
export async function runRanks(
  job: Job,
  onProgress: (share: number) => void,
  abortSignal: AbortSignal,
): Promise<readonly RankReport[]> {
  const { ranks } = job.settings;
  const entry = new URL("./rank.js", import.meta.url);
  const result = await launchRanks<{ readonly share: number }>(
    { entry, args: [JSON.stringify(job)], ranks },
    { abort: abortSignal, maxRestarts: 0, onReport: ({ share }) => onProgress(share) },
  );
  throwIfFailed(result);
  return Array.from({ length: ranks }, (_, rank) => readReport(job.directory, rank));
}

/** Computes the same attention on one device with the whole sequence, on all cores of the machine or its first GPU. */
export async function attendOnOneDevice(
  settings: Settings,
  onProgress: (share: number) => void,
): Promise<AttentionRun> {
  await using ctx = await initSingleRank(settings);
  const { shape: _, ...singleDeviceSettings } = { ...settings, ranks: 1, backend: "local" };
  const workUnits = { forward: settings.numHeads, backward: settings.backward ? settings.numHeads : 0 };
  return await attend(ctx, singleDeviceSettings, createProgressMeter(workUnits, onProgress));
}

/** Returns the whole problem, rounded to the dtype as on the device. */
export async function createProblem(settings: Settings): Promise<Problem> {
  await using ctx = await initSingleRank(settings);
  const { numHeads, tokens, headDim, dtype } = settings;
  const hostProjections = new Embedder(readGenome(), settings).projectPositions(
    Int32Array.from({ length: tokens }, (_, i) => i),
  );
  const roundToDType = async (values: Float32Array): Promise<Float32Array> => {
    using tensor = mosaic.fromArray(ctx, values, [values.length], { dtype });
    return await tensor.read();
  };
  return {
    q: await roundToDType(hostProjections.q),
    k: await roundToDType(hostProjections.k),
    v: await roundToDType(hostProjections.v),
    numHeads,
    tokens,
    headDim,
    mask: resolveSlices(getMask(settings), tokens, tokens),
  };
}

function initSingleRank({ device }: Settings): Promise<mosaic.Context> {
  return mosaic.init({ rank: 0, worldSize: 1, ...(device && { device }) });
}

/** Gathers the ranks' results from the directory in the order of the sequence: tensors [H,n,D], NaN where missing. */
export function gatherResults(directory: string, reports: readonly RankReport[], settings: Settings): Results {
  const { numHeads, tokens, headDim, backward } = settings;
  const names = backward ? ["out", "dq", "dk", "dv"] : ["out"];
  const gatheredTensors = names.map(
    (name) => [name, new Float32Array(numHeads * tokens * headDim).fill(Number.NaN)] as const,
  );
  for (const { rank, spans } of reports) {
    const rows = positions(spans);
    for (const [name, tensor] of gatheredTensors) {
      const shard = readTensor(directory, name, rank);
      for (let head = 0; head < numHeads; head++) {
        rows.forEach((position, row) => {
          const rowStart = (head * rows.length + row) * headDim;
          tensor.set(shard.subarray(rowStart, rowStart + headDim), (head * tokens + position) * headDim);
        });
      }
    }
  }
  return Object.fromEntries(gatheredTensors);
}
