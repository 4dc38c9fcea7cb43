import { checkOptionNames, OptionError } from "@mosaic/core";

/** A factor on the learning rate for each step, counted from 0. A function of the step alone, so that a resumed run continues it. */
export type Schedule = (step: number) => number;

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
export function linearWarmup(steps: number, after: Schedule = constant()): Schedule {
  checkSteps("linearWarmup", steps);
  return (step) => (step < steps ? (step + 1) / steps : after(step - steps));
}

/** Where a decay ends. */
export interface DecayOptions {
  /** The factor from then on. Default 0. */
  readonly end?: number;
}

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
export function cosine(steps: number, options: DecayOptions = {}): Schedule {
  const end = endOf("cosine", steps, options);
  return (step) => end + ((1 - end) / 2) * (1 + Math.cos(Math.PI * Math.min(1, step / steps)));
}

/** From 1 to `end` on a straight line in `steps` steps, and `end` thereafter. */
export function linearDecay(steps: number, options: DecayOptions = {}): Schedule {
  const end = endOf("linearDecay", steps, options);
  return (step) => 1 + (end - 1) * Math.min(1, step / steps);
}

/** 1 / √(1 + step / steps): 1 at first, 1/√2 after `steps` steps (Vaswani et al. 2017, without their warm-up). */
export function inverseSquareRoot(steps: number): Schedule {
  checkSteps("inverseSquareRoot", steps);
  return (step) => 1 / Math.sqrt(1 + step / steps);
}

/** 1, and `factor` times as much after each of the milestones, in steps. */
export function multiStep(milestones: readonly number[], factor = 0.1): Schedule {
  for (const each of milestones) checkSteps("multiStep", each);
  checkFactor("multiStep", "factor", factor);
  return (step) => factor ** milestones.filter((each) => step >= each).length;
}

function endOf(where: string, steps: number, options: DecayOptions): number {
  checkSteps(where, steps);
  checkOptionNames(where, options, ["end"]);
  const { end = 0 } = options;
  checkFactor(where, "end", end);
  return end;
}

function checkFactor(where: string, name: string, factor: number): void {
  if (Number.isFinite(factor) && factor >= 0) return;
  throw new OptionError({ where, expected: `${name} ≥ 0, a factor on the learning rate`, received: String(factor) });
}

function checkSteps(where: string, steps: number): void {
  if (Number.isFinite(steps) && steps > 0) return;
  throw new OptionError({ where, expected: "more than 0 steps", received: String(steps) });
}
