import { expectValue, defineOptions, option, type OptionsOf } from "@mosaic/core";
import type { Case } from "../check.ts";
import { poisonMemory } from "../perturb/group.ts";
import { attentionCases } from "./attention.ts";
import { attentionVariantCases } from "./attention-variants.ts";
import { elementwiseCases } from "./elementwise.ts";
import { extremeScoreCases } from "./extreme-scores.ts";
import { matmulCases } from "./matmul.ts";
import { memoryCases } from "./memory.ts";
import { mergeCases } from "./merge.ts";
import { normCases } from "./norms.ts";
import type { MakeDevice } from "./tensors.ts";
import { rngCases } from "./random.ts";
import { reductionCases } from "./reductions.ts";
import { rotaryCases } from "./rotary.ts";
import { schemaCases } from "./schema.ts";
import { streamCases, traceCases } from "./streams.ts";
import { trainingCases } from "./training.ts";

const tolerance = option.number({ above: 0 });
export const attentionToleranceOptions = defineOptions("attentionTolerance", {
  /** Tolerance for float32 inputs. */
  float32: tolerance,
  /** Tolerance for bfloat16 inputs. */
  bfloat16: tolerance,
  /** Tolerance for float16 inputs. */
  float16: tolerance,
});

export const deviceSuiteOptions = defineOptions("deviceSuite", {
  /**
   * Tolerance of attention against float64, relative to the largest value, by dtype of the inputs. Default: allows for
   * rounding.
   */
  attentionTolerance: option.nested(attentionToleranceOptions, {
    optional: true,
    expected: "an object that maps each dtype to a number",
  }),
  /**
   * Nanoseconds by which the traces of two devices may differ, for devices that do not use the host's clock. Default 0.
   */
  clockError: option.number({ min: 0, default: 0 }),
});
/** Options of `deviceSuite`, in which devices may differ. */
export type DeviceSuiteOptions = OptionsOf<typeof deviceSuiteOptions>;

/**
 * Returns test cases that every device must pass. They compare each kernel of core's `Kernels` with float64, for every
 * dtype, with strided operands and with outputs in memory that holds NaN. They check which operands kernels read and
 * mutate, as stated in the kernel schema. They also test memory, reads, order within and between streams, failures,
 * traces and disposal. Each case calls `make` once or twice and closes the devices.
 *
 * @example
 * ```ts
 * import { deviceSuite } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const cases = deviceSuite(() => cpu({ threads: 1 })); // vitest: for (const { name, run } of cases) test(name, run)
 * await cases.find(({ name }) => name === "softmax, float32")!.run();
 * ```
 */
export function deviceSuite(make: MakeDevice, options?: DeviceSuiteOptions): Case[] {
  expectValue("deviceSuite: make", typeof make === "function", "a function that returns a device", make);
  const { attentionTolerance, clockError } = deviceSuiteOptions.parse(options);
  const makePoisonedDevice = () => poisonMemory(make());
  return [
    ...memoryCases(make),
    ...streamCases(make, clockError),
    ...traceCases(make),
    ...schemaCases(make),
    ...elementwiseCases(makePoisonedDevice),
    ...reductionCases(makePoisonedDevice),
    ...normCases(makePoisonedDevice),
    ...rotaryCases(makePoisonedDevice),
    ...matmulCases(makePoisonedDevice),
    ...rngCases(makePoisonedDevice),
    ...trainingCases(makePoisonedDevice),
    ...mergeCases(makePoisonedDevice),
    ...attentionCases(makePoisonedDevice, attentionTolerance),
    ...attentionVariantCases(makePoisonedDevice, attentionTolerance),
    ...extremeScoreCases(makePoisonedDevice, attentionTolerance),
  ];
}
