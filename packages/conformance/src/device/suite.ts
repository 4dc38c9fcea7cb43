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
  /** Of float32 inputs. */
  float32: tolerance,
  /** Of bfloat16 inputs. */
  bfloat16: tolerance,
  /** Of float16 inputs. */
  float16: tolerance,
});

export const deviceSuiteOptions = defineOptions("deviceSuite", {
  /** How far attention may be from float64, relative to the largest value, by the dtype of its inputs. Default: what rounding explains. */
  attentionTolerance: option.nested(attentionToleranceOptions, {
    optional: true,
    expected: "an object that maps each dtype to a number",
  }),
  /** Nanoseconds by which the traces of two devices may be apart: those whose clock is not the host's. Default 0. */
  clockError: option.number({ min: 0, default: 0 }),
});
/** What devices may differ in. */
export type DeviceSuiteOptions = OptionsOf<typeof deviceSuiteOptions>;

/**
 * What every device must do: each kernel of core's `Kernels` against float64, on every dtype, on strided operands and
 * into memory that holds NaN; what the kernel schema states that they read and mutate; memory, reads, order within and between streams, failure, traces, and the end of a device.
 * `make` is called for each case, twice for some; the case closes what it makes.
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
