import type { AttentionBackend, Context, Device } from "@mosaic/core";
import { magnitude } from "../check.ts";
import { type ErrorSum, errorSum, type Extent, extentOf, type Measured, type Measurement } from "../measure/gate.ts";
import { answerFor, attendLocally, type AttentionNumbers, attendOn, rowsOf } from "./attend.ts";
import { type Answer, answerOf, type Trial } from "./trial.ts";

const names = ["out", "lse", "dq", "dk", "dv"] as const;

/** One rank's part of a trial, measured. Every rank of the mesh must call it; ranks may be processes. */
export async function measureOn(ctx: Context, backend: AttentionBackend, trial: Trial): Promise<Measurement> {
  const actual = await attendOn(ctx, backend, trial);
  const mine = answerFor(trial, rowsOf(trial, ctx.mesh.coordinate));
  const { errors, extents, lse } = await yardstickOf(ctx.device, trial);
  const measured = (name: (typeof names)[number]): Measured => ({
    found: errorSum(actual[name], mine[name]),
    local: errors[name],
    expected: extents[name],
  });
  const results = Object.fromEntries(names.map((name) => [name, measured(name)]));
  return { trial: trial.name, results, lse: trial.values?.isApart ? 0 : lse };
}

/** What a rank's errors are held to. */
interface Yardstick {
  /** What the device's own kernel makes of the whole. */
  readonly errors: AttentionNumbers<ErrorSum>;
  readonly extents: AttentionNumbers<Extent>;
  /** The largest |lse|. */
  readonly lse: number;
}

const yardsticks = new WeakMap<Answer, Map<string, Promise<Yardstick>>>();

/** Measured once: all ranks of one process have the same kernels, and the whole is the same on every mesh and placement. */
function yardstickOf(device: Device, trial: Trial): Promise<Yardstick> {
  const expected = answerOf(trial);
  const known = yardsticks.get(expected) ?? new Map<string, Promise<Yardstick>>();
  yardsticks.set(expected, known);
  const how = `${device.type} ${JSON.stringify(trial.mask)}`;
  const yardstick = known.get(how) ?? measureWhole(device, trial);
  known.set(how, yardstick);
  // Who fails does so for himself: the next tries again.
  yardstick.catch(() => known.delete(how));
  return yardstick;
}

async function measureWhole(device: Device, trial: Trial): Promise<Yardstick> {
  const expected = answerOf(trial);
  const actual = await attendLocally(device, trial);
  const eachName = <T>(measure: (name: (typeof names)[number]) => T) =>
    Object.fromEntries(names.map((name) => [name, measure(name)])) as Record<(typeof names)[number], T>;
  return {
    errors: eachName((name) => errorSum(actual[name], expected[name])),
    extents: eachName((name) => extentOf(expected[name])),
    lse: magnitude(expected.lse),
  };
}
