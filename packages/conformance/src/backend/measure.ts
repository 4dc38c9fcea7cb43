import type { AttentionBackend, Context, Device } from "@mosaic/core";
import { check, magnitude } from "../check.ts";
import {
  type ErrorSum,
  computeErrorSum,
  type ValueMagnitude,
  measureMagnitude,
  type ResultMeasurement,
  type Measurement,
} from "../measure/gate.ts";
import {
  selectExpectedResults,
  runLocalAttention,
  type AttentionNumbers,
  runBackendOnRank,
  getRankPositions,
} from "./attend.ts";
import { perturbContext } from "../perturb/group.ts";
import { type Reference, getReference, type Trial } from "./trial.ts";
import { backendTrials, placements } from "./trials.ts";
import type { Arrangement } from "../suite-options.ts";

const resultNames = ["out", "lse", "dq", "dk", "dv"] as const;

/** Runs and measures one rank's part of a trial. Every rank of the mesh must call it. Ranks may be processes. */
export async function measureBackend(ctx: Context, backend: AttentionBackend, trial: Trial): Promise<Measurement> {
  const actual = await runBackendOnRank(ctx, backend, trial);
  const expectedShard = selectExpectedResults(trial, getRankPositions(trial, ctx.mesh.coordinate));
  const { errors, magnitudes, lseMagnitude } = await getReferenceErrors(ctx.device, trial);
  const measureResult = (name: (typeof resultNames)[number]): ResultMeasurement => ({
    measuredError: computeErrorSum(actual[name], expectedShard[name]),
    localError: errors[name],
    expected: magnitudes[name],
    weightDtype: trial.dtype,
  });
  const results = Object.fromEntries(resultNames.map((name) => [name, measureResult(name)]));
  return { trial: trial.name, results, lse: trial.values?.hasSeparatedScores ? 0 : lseMagnitude };
}

/**
 * Runs and measures this rank's part of all trials of an arrangement: every placement, in float32 and bfloat16
 * alternately, with messages that complete late. For ranks that are processes; within one process, use `backendSuite`.
 */
export async function measureArrangement(ctx: Context, arrangement: Arrangement): Promise<Measurement[]> {
  const perturbedCtx = perturbContext(ctx, { completion: "late", seed: 3 });
  const measurements: Measurement[] = [];
  for (const [i, placement] of placements().entries()) {
    const dtype = i % 2 === 0 ? "float32" : "bfloat16";
    for (const trial of backendTrials(arrangement, { placement, dtype, seed: 100 }))
      measurements.push(await measureBackend(perturbedCtx, arrangement.backend, trial));
  }
  check(
    perturbedCtx.numInFlight() === 0,
    `${arrangement.backend.name}, rank ${ctx.rank}: expected 0 collectives in flight after the pass, received ${perturbedCtx.numInFlight()}; call wait() on each`,
  );
  return measurements;
}

/** Errors of one device, to which the errors of the ranks are compared. */
interface ReferenceErrors {
  /** Errors of the device's own kernel on the whole trial. */
  readonly errors: AttentionNumbers<ErrorSum>;
  readonly magnitudes: AttentionNumbers<ValueMagnitude>;
  /** The largest |lse|. */
  readonly lseMagnitude: number;
}

const referenceErrorsCache = new WeakMap<Reference, Map<string, Promise<ReferenceErrors>>>();

/**
 * Returns the cached errors. They are measured once, because all ranks of one process have the same kernels and the
 * whole trial is the same on every mesh and placement.
 */
function getReferenceErrors(device: Device, trial: Trial): Promise<ReferenceErrors> {
  const expected = getReference(trial);
  const errorsByKey = referenceErrorsCache.get(expected) ?? new Map<string, Promise<ReferenceErrors>>();
  referenceErrorsCache.set(expected, errorsByKey);
  const key = `${device.type} ${JSON.stringify([trial.mask, trial.modifiers])}`;
  const errors = errorsByKey.get(key) ?? measureReference(device, trial);
  errorsByKey.set(key, errors);
  // A failure is not cached: the next call measures again.
  errors.catch(() => errorsByKey.delete(key));
  return errors;
}

async function measureReference(device: Device, trial: Trial): Promise<ReferenceErrors> {
  const expected = getReference(trial);
  const actual = await runLocalAttention(device, trial);
  const measureEach = <T>(measure: (name: (typeof resultNames)[number]) => T) =>
    Object.fromEntries(resultNames.map((name) => [name, measure(name)])) as Record<(typeof resultNames)[number], T>;
  return {
    errors: measureEach((name) => computeErrorSum(actual[name], expected[name])),
    magnitudes: measureEach((name) => measureMagnitude(expected[name])),
    lseMagnitude: magnitude(expected.lse),
  };
}
