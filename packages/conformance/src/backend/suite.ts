import { type AttentionBackend, type DType, expectValue, defineOptions, option, type OptionsOf } from "@mosaic/core";
import { type Case, check, checkClose, checkEqual, LEAK_HINT, magnitude } from "../check.ts";
import { type CompletionTime, perturbContext, poisonMemory } from "../perturb/group.ts";
import { checkTrials, type Measurement } from "../measure/gate.ts";
import { runOnWorld } from "../world.ts";
import { runLocalAttention, runBackendOnRank, type InitialState, selectRows, getRankPositions } from "./attend.ts";
import { measureBackend } from "./measure.ts";
import {
  backendTrials,
  type Extents,
  formatMesh,
  placements,
  meshSize,
  sequenceIndex,
  countSequences,
} from "./trials.ts";
import {
  type Arrangement,
  arrangementsOption,
  dtypesOption,
  makeBackend,
  makeBackendOption,
  makeWorldOption,
  worldSizesOption,
} from "../suite-options.ts";

const isExtents = (value: unknown): value is Extents =>
  typeof value === "object" && value !== null && "queries" in value && "keys" in value;

export const backendSuiteOptions = defineOptions("backendSuite", {
  /** Opens the worlds. */
  makeWorld: makeWorldOption,
  /** Arrangements to test: usually several world sizes, including odd ones, and some nested backends. */
  arrangements: arrangementsOption,
  /** Dtypes to test. Default ["float32", "bfloat16"]. */
  dtypes: dtypesOption,
  /** Lengths of the sequences. Default: irregular lengths, and extreme scores. */
  extents: option.array(option.custom("{ queries, keys }", isExtents), { optional: true }),
  /**
   * "all": every mask on every arrangement with every placement in every dtype. "pairs": half of these combinations, in
   * which each mask occurs with each placement, each arrangement and each dtype at least once. With two dtypes, each
   * mask occurs with each placement on each arrangement in one of the two. Default "all".
   */
  coverage: option.oneOf(["all", "pairs"], { default: "all" }),
});
/** Options of `backendSuite`. */
export type BackendSuiteOptions = OptionsOf<typeof backendSuiteOptions>;

/**
 * Returns arrangements of a backend along one axis, one for each world size, by default 1 to 8.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { alongOneAxis } from "@mosaic/conformance";
 * alongOneAxis((axis) => ring({ axis }), [2, 3]).map(({ mesh }) => mesh); // => [{ sp: 2 }, { sp: 3 }]
 * ```
 * @throws OptionError unless `backend` is a function and the sizes are integers ≥ 1.
 */
export function alongOneAxis(
  backend: (axis: string) => AttentionBackend,
  sizes: readonly number[] = [1, 2, 3, 4, 5, 6, 7, 8],
): Arrangement[] {
  expectValue("alongOneAxis: backend", makeBackendOption.accepts(backend), makeBackendOption.expected, backend);
  expectValue("alongOneAxis: sizes", worldSizesOption.accepts(sizes), worldSizesOption.expected, sizes);
  return sizes.map((sp) => ({ mesh: { sp }, axes: ["sp"], backend: makeBackend("alongOneAxis", backend, "sp") }));
}

/**
 * Returns test cases that every attention backend must pass. The forward and backward must be correct on every rank,
 * for all masks, placements, grouped heads, dtypes and irregular lengths, while memory is poisoned and messages arrive
 * late and in any order. Results are folded into an existing state and added to existing gradients, inputs are not
 * modified, and all memory is released.
 *
 * A result is correct if its error against float64 is at most twice that of the device's own kernel on the same data in
 * one piece.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { world } from "@mosaic/collectives-local";
 * import { alongOneAxis, backendSuite, type MakeWorld } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
 *   world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });
 * const cases = backendSuite({ makeWorld, arrangements: alongOneAxis((axis) => ring({ axis }), [3]) });
 * await cases[0]!.run();
 * ```
 */
export function backendSuite(suiteOptions: BackendSuiteOptions): Case[] {
  const { dtypes, coverage, ...options } = backendSuiteOptions.parse(suiteOptions);
  return options.arrangements.flatMap((arrangement, i) => [
    ...placements().flatMap((placement, j) =>
      dtypes.map((dtype, l): Case => {
        // Over all arrangements, each placement occurs with both completion times without doubling the number of cases.
        // Halving i makes this choice independent of the choice of trials below.
        const completion: CompletionTime = (Math.floor(i / 2) + j + l) % 2 === 0 ? "late" : "soon";
        // A single arrangement would test each mask with only half of the placements, so it runs all trials.
        const isHalfOfTrialsUsed = coverage === "pairs" && options.arrangements.length > 1;
        const includesTrial = (trial: number): boolean => !isHalfOfTrialsUsed || (trial + i + j + l) % 2 === 0;
        return {
          name: `${caseTitle(arrangement)}, ${placement.name}, ${dtype}: as accurate as on one device, messages ${completion}`,
          run: () => checkExactness(options, arrangement, { completion, placement, dtype, includesTrial }),
        };
      }),
    ),
    {
      name: `${caseTitle(arrangement)}: folds into an existing state, accumulates gradients, and releases all memory`,
      run: () => checkFolding(options, arrangement),
    },
    {
      name: `${caseTitle(arrangement)}: bitwise-identical results in two runs and for any message arrival order`,
      run: () => checkReproducibility(options, arrangement),
    },
  ]);
}

function caseTitle({ backend, mesh }: Arrangement): string {
  return `${backend.name} on ${formatMesh(mesh)}`;
}

type CommonSuiteOptions = Omit<BackendSuiteOptions, "arrangements">;

interface TrialConditions {
  readonly completion: CompletionTime;
  readonly placement: ReturnType<typeof placements>[number];
  readonly dtype: DType;
  /** Whether the trial with this index is run. */
  includesTrial(trial: number): boolean;
}

async function checkExactness(
  { makeWorld, extents }: CommonSuiteOptions,
  arrangement: Arrangement,
  conditions: TrialConditions,
): Promise<void> {
  const { mesh, axes, backend } = arrangement;
  const { completion, placement, dtype, includesTrial: isTrialIncluded } = conditions;
  // Each set of ranks that shares a sequence has its own trials.
  const trials = Array.from({ length: countSequences(mesh, axes) }, (_, i) =>
    backendTrials(arrangement, { placement, dtype, seed: 100 * (i + 1), ...(extents && { extents }) }).filter(
      (_, trial) => isTrialIncluded(trial),
    ),
  );
  const rankResults = await runOnWorld(
    makeWorld,
    { size: meshSize(mesh), mesh, wrapDevice: poisonMemory },
    async (ctx) => {
      const perturbedCtx = perturbContext(ctx, { completion, seed: 7 });
      const sequence = sequenceIndex(perturbedCtx, axes);
      const measurements: Measurement[] = [];
      for (const trial of trials[sequence]!) {
        measurements.push(await measureBackend(perturbedCtx, backend, trial));
        const { name } = trial;
        check(
          perturbedCtx.numInFlight() === 0,
          `${name}, rank ${ctx.rank}: expected 0 collectives in flight after the pass, received ${perturbedCtx.numInFlight()}; call wait() on each`,
        );
      }
      return { sequence, measurements };
    },
  );
  for (const sequence of trials.keys()) {
    const sequenceRanks = rankResults.filter((rank) => rank.sequence === sequence);
    checkTrials(
      backend.name,
      sequenceRanks.map(({ measurements }) => measurements),
    );
  }
}

/** A state over other keys, and gradients of other queries. */
const priorState: InitialState = { out: 0.5, lse: 0.25, gradients: 0.75 };

/** Calls the backend as an outer backend calls its inner backend, whose keys arrive part by part. */
async function checkFolding({ makeWorld, extents }: CommonSuiteOptions, arrangement: Arrangement): Promise<void> {
  const { mesh, backend } = arrangement;
  const options = { placement: placements()[1]!, dtype: "float32", seed: 9, ...(extents && { extents }) } as const;
  const trials = backendTrials(arrangement, options);
  await runOnWorld(makeWorld, { size: meshSize(mesh), mesh }, async (ctx) => {
    const { allocated: initialBytes } = ctx.device.memory();
    // The first trial has a full mask. The last may have no keys; then the state must not change.
    for (const trial of new Set([trials[0]!, trials.at(-1)!])) {
      const expected = await runLocalAttention(ctx.device, trial, priorState);
      const actual = await runBackendOnRank(ctx, backend, trial, priorState);
      const expectedShard = selectRows(expected, trial, getRankPositions(trial, ctx.mesh.coordinate));
      for (const name of ["out", "lse", "dq", "dk", "dv"] as const) {
        const description = `${backend.name}, ${trial.name}, rank ${ctx.rank}, added to the initial values: ${name}`;
        checkClose(actual[name], expectedShard[name], 1e-4 * Math.max(1, magnitude(expected[name])), description);
      }
    }
    ctx.world.barrier().wait();
    await ctx.device.stream.synchronize();
    const leakedBytes = ctx.device.memory().allocated - initialBytes;
    check(
      leakedBytes === 0,
      `${backend.name}, rank ${ctx.rank}: expected 0 more bytes allocated after the pass, received ${leakedBytes}; ${LEAK_HINT}`,
    );
  });
}

async function checkReproducibility(
  { makeWorld, extents }: CommonSuiteOptions,
  arrangement: Arrangement,
): Promise<void> {
  const { mesh, backend } = arrangement;
  const options = { placement: placements()[1]!, dtype: "float32", seed: 5, ...(extents && { extents }) } as const;
  const trial = backendTrials(arrangement, options)[1]!;
  await runOnWorld(makeWorld, { size: meshSize(mesh), mesh }, async (ctx) => {
    const expected = await runBackendOnRank(ctx, backend, trial);
    const contexts = [
      ctx,
      perturbContext(ctx, { completion: "late", seed: 1 }),
      perturbContext(ctx, { completion: "soon", seed: 2 }),
    ];
    for (const context of contexts) {
      const actual = await runBackendOnRank(context, backend, trial);
      for (const name of ["out", "lse", "dq", "dk", "dv"] as const) {
        checkEqual(actual[name], expected[name], `${backend.name}, rank ${ctx.rank}: ${name}`);
      }
    }
  });
}
