import type { AttentionBackend, Context, Device } from "@mosaic/core";
import { magnitude } from "../check.ts";
import {
  type ErrorSum,
  errorSum,
  type Extent,
  measureExtent,
  type Measured,
  type Measurement,
} from "../measure/gate.ts";
import { expectedFor, runLocalAttention, type AttentionNumbers, runBackendOnRank, positionsOfRank } from "./attend.ts";
import { type Reference, getReference, type Trial } from "./trial.ts";

const names = ["out", "lse", "dq", "dk", "dv"] as const;

/** One rank's part of a trial, measured. Every rank of the mesh must call it; ranks may be processes. */
export async function measureBackend(ctx: Context, backend: AttentionBackend, trial: Trial): Promise<Measurement> {
  const actual = await runBackendOnRank(ctx, backend, trial);
  const mine = expectedFor(trial, positionsOfRank(trial, ctx.mesh.coordinate));
  const { errors, extents, lse } = await referenceErrors(ctx.device, trial);
  const measured = (name: (typeof names)[number]): Measured => ({
    measured: errorSum(actual[name], mine[name]),
    local: errors[name],
    expected: extents[name],
    weights: trial.dtype,
  });
  const results = Object.fromEntries(names.map((name) => [name, measured(name)]));
  return { trial: trial.name, results, lse: trial.values?.isNearTie ? 0 : lse };
}

/** What a rank's errors are held to. */
interface ReferenceErrors {
  /** What the device's own kernel makes of the whole. */
  readonly errors: AttentionNumbers<ErrorSum>;
  readonly extents: AttentionNumbers<Extent>;
  /** The largest |lse|. */
  readonly lse: number;
}

const referenceCache = new WeakMap<Reference, Map<string, Promise<ReferenceErrors>>>();

/** Measured once: all ranks of one process have the same kernels, and the whole is the same on every mesh and placement. */
function referenceErrors(device: Device, trial: Trial): Promise<ReferenceErrors> {
  const expected = getReference(trial);
  const known = referenceCache.get(expected) ?? new Map<string, Promise<ReferenceErrors>>();
  referenceCache.set(expected, known);
  const how = `${device.type} ${JSON.stringify([trial.mask, trial.modifiers])}`;
  const reference = known.get(how) ?? measureReference(device, trial);
  known.set(how, reference);
  // Who fails does so for himself: the next tries again.
  reference.catch(() => known.delete(how));
  return reference;
}

async function measureReference(device: Device, trial: Trial): Promise<ReferenceErrors> {
  const expected = getReference(trial);
  const actual = await runLocalAttention(device, trial);
  const eachName = <T>(measure: (name: (typeof names)[number]) => T) =>
    Object.fromEntries(names.map((name) => [name, measure(name)])) as Record<(typeof names)[number], T>;
  return {
    errors: eachName((name) => errorSum(actual[name], expected[name])),
    extents: eachName((name) => measureExtent(expected[name])),
    lse: magnitude(expected.lse),
  };
}
