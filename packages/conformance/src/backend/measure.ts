import type { AttentionBackend, Context, Device } from "@mosaic/core";
import { magnitude } from "../check.ts";
import { answerFor, attendLocally, type AttentionNumbers, attendOn, rowsOf } from "./attend.ts";
import { checkErrors, type ErrorSum, errorSum, joined } from "./errors.ts";
import { answerOf, type Trial } from "./trial.ts";

const names = ["out", "lse", "dq", "dk", "dv"] as const;

/** How far one rank's part of a trial, and one device's answer to the whole of it, are from float64. Survives JSON. */
export interface Measurement {
  readonly errors: AttentionNumbers<ErrorSum>;
  readonly local: AttentionNumbers<ErrorSum>;
}

/** One rank's part of a trial, measured. Every rank of the mesh must call it; ranks may be processes. */
export async function measureOn(ctx: Context, backend: AttentionBackend, trial: Trial): Promise<Measurement> {
  const actual = await attendOn(ctx, backend, trial);
  const errors = errorsOf(actual, answerFor(trial, rowsOf(trial, ctx.mesh.coordinate)));
  return { errors, local: await localErrors(ctx.device, trial) };
}

/** All ranks together make at most twice the error of one device. */
export function checkMeasurements(backend: string, trial: Trial, ranks: readonly Measurement[]): void {
  const answer = answerOf(trial);
  for (const name of names) {
    checkErrors(joined(ranks.map(({ errors }) => errors[name])), {
      local: ranks[0]!.local[name],
      expected: answer[name],
      lse: magnitude(answer.lse),
      what: `${backend}, ${trial.name}: ${name}`,
    });
  }
}

const yardsticks = new WeakMap<Trial, Promise<AttentionNumbers<ErrorSum>>>();

/** Measured once: all ranks of one process have the same kernels. */
function localErrors(device: Device, trial: Trial): Promise<AttentionNumbers<ErrorSum>> {
  let errors = yardsticks.get(trial);
  if (errors === undefined) {
    errors = attendLocally(device, trial).then((actual) => errorsOf(actual, answerOf(trial)));
    yardsticks.set(trial, errors);
  }
  return errors;
}

function errorsOf(actual: AttentionNumbers, expected: AttentionNumbers<Float64Array>): AttentionNumbers<ErrorSum> {
  const [out, lse, dq, dk, dv] = names.map((name) => errorSum(actual[name], expected[name]));
  return { out: out!, lse: lse!, dq: dq!, dk: dk!, dv: dv! };
}
