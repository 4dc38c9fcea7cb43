import type { DType } from "@mosaic/core";
import type { Case } from "../case.ts";
import { poisoned } from "../disturb/device.ts";
import { attentionCases } from "./attention.ts";
import { elementwiseCases } from "./elementwise.ts";
import { matmulCases } from "./matmul.ts";
import { memoryCases } from "./memory.ts";
import { mergeCases } from "./merge.ts";
import { normCases } from "./norms.ts";
import type { MakeDevice } from "./on-device.ts";
import { randomCases } from "./random.ts";
import { reductionCases } from "./reductions.ts";
import { trainingCases } from "./training.ts";

export interface DeviceSuiteOptions {
  /** How far attention may be from float64, relative to the largest value, by the dtype of its inputs. */
  readonly attentionTolerance?: Readonly<Record<DType, number>>;
}

/**
 * What every device must do: each kernel of core's `Kernels` against float64, on every dtype, on strided operands and
 * into memory that holds NaN; memory, order, reads and fences. `make` is called for each case; the case closes the device.
 *
 * @example
 * ```ts
 * import { deviceSuite } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const cases = deviceSuite(() => cpu({ threads: 1 })); // vitest: for (const { name, run } of cases) test(name, run)
 * await cases.find(({ name }) => name === "softmax, float32")!.run();
 * ```
 */
export function deviceSuite(make: MakeDevice, { attentionTolerance }: DeviceSuiteOptions = {}): Case[] {
  const makePoisoned = () => poisoned(make());
  return [
    ...memoryCases(make),
    ...elementwiseCases(makePoisoned),
    ...reductionCases(makePoisoned),
    ...normCases(makePoisoned),
    ...matmulCases(makePoisoned),
    ...randomCases(makePoisoned),
    ...trainingCases(makePoisoned),
    ...mergeCases(makePoisoned),
    ...attentionCases(makePoisoned, attentionTolerance),
  ];
}
