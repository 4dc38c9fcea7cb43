import { checkArgument, checkFunction, defineOptions, option, type OptionsOf } from "@mosaic/core";

/** A factor on the learning rate for each step, counted from 0. A function of the step alone, so that a resumed run continues it. */
export type Schedule = (step: number) => number;

const positiveNumberOption = option.number({ above: 0 });

/** Always 1. */
export function constant(): Schedule {
  return () => 1;
}

/**
 * From 1 / steps to 1 in `steps` steps, then as `after` computes, whose own steps begin there (Goyal et al. 2017).
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
  checkFunction("linearWarmup: after", nextSchedule);
  return (step) => (step < steps ? (step + 1) / steps : nextSchedule(step - steps));
}

export const decayOptions = defineOptions("decay", {
  /** The factor on the learning rate from then on. Default 0. */
  end: option.number({ min: 0, default: 0 }),
});
/** Where a decay ends. */
export type DecayOptions = OptionsOf<typeof decayOptions>;

/**
 * From 1 to `end` along half a cosine in `steps` steps, and `end` thereafter (Loshchilov and Hutter 2017).
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

/** From 1 to `end` on a straight line in `steps` steps, and `end` thereafter. */
export function linearDecay(steps: number, options?: DecayOptions): Schedule {
  checkArgument("linearDecay: steps", steps, positiveNumberOption);
  const { end } = decayOptions.parse(options, "linearDecay");
  return (step) => 1 + (end - 1) * Math.min(1, step / steps);
}

/** 1 / √(1 + step / steps): 1 at first, 1/√2 after `steps` steps (Vaswani et al. 2017, without their warm-up). */
export function inverseSquareRoot(steps: number): Schedule {
  checkArgument("inverseSquareRoot: steps", steps, positiveNumberOption);
  return (step) => 1 / Math.sqrt(1 + step / steps);
}

/** 1, and `factor` times as much after each of the milestones, in steps. */
export function multiStep(milestones: readonly number[], factor = 0.1): Schedule {
  checkArgument("multiStep: milestones", milestones, option.array(positiveNumberOption));
  checkArgument("multiStep: factor", factor, option.number({ min: 0 }));
  return (step) => factor ** milestones.filter((each) => step >= each).length;
}
