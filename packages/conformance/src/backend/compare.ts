import type { AttentionBackend, Context } from "@mosaic/core";
import { checkGated } from "../check.ts";
import { answerFor, attendOn, localErrors, rowsOf } from "./attend.ts";
import type { Trial } from "./trial.ts";

/**
 * One rank's part of a trial: out, lse, dq, dk and dv may differ from float64's by at most twice what the device's own
 * kernel differs by, on the same data in one piece. Every rank of the mesh must call it; ranks may be processes.
 */
export async function compareOn(ctx: Context, backend: AttentionBackend, trial: Trial): Promise<void> {
  const actual = await attendOn(ctx, backend, trial);
  const expected = answerFor(trial, rowsOf(trial, ctx.mesh.coordinate));
  const yardstick = await localErrors(ctx.device, trial);
  for (const name of ["out", "lse", "dq", "dk", "dv"] as const) {
    const what = `${backend.name}, ${trial.name}, rank ${ctx.rank}: ${name}`;
    checkGated(actual[name], { expected: expected[name], yardstick: yardstick[name], what });
  }
}
