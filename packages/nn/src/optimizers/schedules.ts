import { checkArgument, checkFunction, defineOptions, option, type OptionsOf } from "@mosaic/core";

/**
 * Returns the factor on the learning rate for a step, counted from 0. Depends on the step alone, so that a resumed run
 * continues the schedule.
 */
export type Schedule = (step: number) => number;

const positiveNumberOption = option.number({ above: 0 });

/**
 * Returns a schedule that is always 1.
 *
 * @example
 * ```ts
 * import { constant } from "@mosaic/nn";
 * constant()(1000); // => 1
 * ```
 */
export function constant(): Schedule {
  return () => 1;
}

/**
 * Rises from 1 / steps to 1 over `steps` steps, then follows `nextSchedule`, whose steps count from there (Goyal et al.
 * 2017).
 *
 * @example
 * ```ts
 * import { constant, linearWarmup } from "@mosaic/nn";
 * const schedule = linearWarmup(4, constant());
 * [0, 1, 2, 3, 4, 100].map(schedule); // => [0.25, 0.5, 0.75, 1, 1, 1]
 * ```
 */
export function linearWarmup(steps: number, nextSchedule: Schedule = constant()): Schedule {
  checkArgument("linearWarmup: steps", steps, positiveNumberOption);
  checkFunction("linearWarmup: nextSchedule", nextSchedule);
  // The last step of a fractional number of steps is shorter.
  return (step) => (step < steps ? Math.min(1, (step + 1) / steps) : nextSchedule(step - steps));
}

export const decayOptions = defineOptions("decay", {
  /** The factor on the learning rate after the decay. Default 0. */
  end: option.number({ min: 0, default: 0 }),
});
/** Options of `cosine` and `linearDecay`. */
export type DecayOptions = OptionsOf<typeof decayOptions>;

/**
 * Decays from 1 to `end` along half a cosine over `steps` steps, then stays at `end` (Loshchilov and Hutter 2017).
 *
 * @example
 * ```ts
 * import { cosine, linearWarmup } from "@mosaic/nn";
 * const schedule = linearWarmup(2, cosine(4, { end: 0.1 }));
 * [0, 1, 2, 4, 6, 7].map((step) => Number(schedule(step).toFixed(3))); // => [0.5, 1, 1, 0.55, 0.1, 0.1]
 * ```
 */
export function cosine(steps: number, options?: DecayOptions): Schedule {
  checkArgument("cosine: steps", steps, positiveNumberOption);
  const { end } = decayOptions.parse(options, "cosine");
  return (step) => end + ((1 - end) / 2) * (1 + Math.cos(Math.PI * Math.min(1, step / steps)));
}

/**
 * Decays linearly from 1 to `end` over `steps` steps, then stays at `end`.
 *
 * @example
 * ```ts
 * import { linearDecay } from "@mosaic/nn";
 * const schedule = linearDecay(4, { end: 0.2 });
 * [0, 1, 2, 4, 100].map((step) => Number(schedule(step).toFixed(3))); // => [1, 0.8, 0.6, 0.2, 0.2]
 * ```
 * @throws OptionError unless `steps` is a number > 0 and `end` a number ≥ 0.
 */
export function linearDecay(steps: number, options?: DecayOptions): Schedule {
  checkArgument("linearDecay: steps", steps, positiveNumberOption);
  const { end } = decayOptions.parse(options, "linearDecay");
  return (step) => 1 + (end - 1) * Math.min(1, step / steps);
}

/**
 * Decays as 1 / √(1 + step / steps): 1 at step 0, 1/√2 after `steps` steps (Vaswani et al. 2017, without their
 * warm-up).
 *
 * @example
 * ```ts
 * import { inverseSquareRoot } from "@mosaic/nn";
 * const schedule = inverseSquareRoot(100);
 * [0, 300, 1500].map(schedule); // => [1, 0.5, 0.25]
 * ```
 * @throws OptionError unless `steps` is a number > 0.
 */
export function inverseSquareRoot(steps: number): Schedule {
  checkArgument("inverseSquareRoot: steps", steps, positiveNumberOption);
  return (step) => 1 / Math.sqrt(1 + step / steps);
}

/**
 * Starts at 1 and is multiplied by `factor` at each of the milestones, which are steps.
 *
 * @example
 * ```ts
 * import { multiStep } from "@mosaic/nn";
 * const schedule = multiStep([10, 20], 0.5);
 * [0, 9, 10, 20].map(schedule); // => [1, 1, 0.5, 0.25]
 * ```
 * @throws OptionError unless the milestones are numbers > 0, and `factor` is a number ≥ 0.
 */
export function multiStep(milestones: readonly number[], factor = 0.1): Schedule {
  checkArgument("multiStep: milestones", milestones, option.array(positiveNumberOption));
  checkArgument("multiStep: factor", factor, option.number({ min: 0 }));
  return (step) => factor ** milestones.filter((each) => step >= each).length;
}
