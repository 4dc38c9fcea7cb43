import { defineOptions, type OptionsOf } from "@mosaic/core";
import { formatMesh, meshSize } from "../backend/trials.ts";
import type { Case } from "../check.ts";
import { poisonMemory } from "../perturb/group.ts";
import { checkMeasurements } from "../measure/gate.ts";
import { type MakeWorld, runOnWorld } from "../world.ts";
import { checkStepsFreeMemory } from "./leak.ts";
import { measureModule, runOnOneDevice } from "./measure.ts";
import { type ModuleTrial, moduleTrials } from "./trial.ts";
import { type Arrangement, arrangementsOption, makeWorldOption } from "../suite-options.ts";

export const moduleSuiteOptions = defineOptions("moduleSuite", {
  /** Opens the worlds. */
  makeWorld: makeWorldOption,
  /** Arrangements to test. Mesh axes other than those of the sequence must be data-parallel. */
  arrangements: arrangementsOption,
});
/** Options of `moduleSuite`. */
export type ModuleSuiteOptions = OptionsOf<typeof moduleSuiteOptions>;

/**
 * Returns test cases that compare MultiAxisAttention over a backend with MultiAxisAttention on one device. The forward,
 * dx and every parameter's gradient must be as accurate as on one device, measured against attention between two linear
 * layers in float64. Gradients must be bitwise identical on all ranks. Each data-parallel rank has its own sequences,
 * and gradients are their mean. Every training step must free its device memory without garbage collection.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { world } from "@mosaic/collectives-local";
 * import { type MakeWorld, moduleSuite } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
 *   world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });
 * const arrangement = { mesh: { dp: 2, sp: 2 }, axes: ["sp"], backend: ring() };
 * await moduleSuite({ makeWorld, arrangements: [arrangement] })[0]!.run();
 * ```
 */
export function moduleSuite(options: ModuleSuiteOptions): Case[] {
  const { makeWorld, arrangements } = moduleSuiteOptions.parse(options);
  return arrangements.flatMap((arrangement) => {
    const name = `MultiAxisAttention, ${arrangement.backend.name} on ${formatMesh(arrangement.mesh)}`;
    return [
      ...moduleTrials().map((trial) => ({
        name: `${name}: ${trial.name}`,
        run: () => checkMatchesOneDevice(makeWorld, arrangement, trial),
      })),
      { name: `${name}: every step frees its memory`, run: () => checkStepsFreeMemory(makeWorld, arrangement) },
    ];
  });
}

async function checkMatchesOneDevice(
  makeWorld: MakeWorld,
  arrangement: Arrangement,
  trial: ModuleTrial,
): Promise<void> {
  const { mesh, backend } = arrangement;
  const singleDevice = await runOnOneDevice(makeWorld, trial, arrangement);
  const ranks = await runOnWorld(makeWorld, { size: meshSize(mesh), mesh, wrapDevice: poisonMemory }, (ctx) =>
    measureModule(ctx, { arrangement, trial, singleDevice }),
  );
  checkMeasurements(`MultiAxisAttention over ${backend.name}`, ranks);
}
