import type { AttentionBackend, Context, Device } from "@mosaic/core";
import { magnitude } from "../check.ts";
import { type ErrorSum, errorSum, extentOf } from "../measure/errors.ts";
import type { Measured, Measurement } from "../measure/gate.ts";
import { answerFor, attendLocally, type AttentionNumbers, attendOn, rowsOf } from "./attend.ts";
import { answerOf, type Trial } from "./trial.ts";

const names = ["out", "lse", "dq", "dk", "dv"] as const;

/** One rank's part of a trial, measured. Every rank of the mesh must call it; ranks may be processes. */
export async function measureOn(ctx: Context, backend: AttentionBackend, trial: Trial): Promise<Measurement> {
  const actual = await attendOn(ctx, backend, trial);
  const mine = answerFor(trial, rowsOf(trial, ctx.mesh.coordinate));
  const whole = answerOf(trial);
  const local = await localErrors(ctx.device, trial);
  const measured = (name: (typeof names)[number]): Measured => ({
    found: errorSum(actual[name], mine[name]),
    local: local[name],
    expected: extentOf(whole[name]),
  });
  const results = Object.fromEntries(names.map((name) => [name, measured(name)]));
  return { trial: trial.name, results, lse: trial.values?.isApart ? 0 : magnitude(whole.lse) };
}

const yardsticks = new WeakMap<Trial, Promise<AttentionNumbers<ErrorSum>>>();

/** Measured once: all ranks of one process have the same kernels. */
function localErrors(device: Device, trial: Trial): Promise<AttentionNumbers<ErrorSum>> {
  let errors = yardsticks.get(trial);
  if (errors === undefined) {
    errors = attendLocally(device, trial).then((actual) => {
      const expected = answerOf(trial);
      const [out, lse, dq, dk, dv] = names.map((name) => errorSum(actual[name], expected[name]));
      return { out: out!, lse: lse!, dq: dq!, dk: dk!, dv: dv! };
    });
    yardsticks.set(trial, errors);
  }
  return errors;
}
