import { causal, documents, full, local, slidingWindow } from "@mosaic/core";
import { checkErrors, errorSum, type ErrorSum, type Gate, joined } from "../backend/errors.ts";
import { placements } from "../backend/placements.ts";
import { concatenated, takeRows } from "../backend/shard.ts";
import { type Arrangement, formatMesh, ranksOf, sequenceOf, sequencesOf } from "../backend/trials.ts";
import type { Case } from "../case.ts";
import { checkEqual } from "../check.ts";
import { poisoned } from "../disturb/device.ts";
import { type MakeWorld, onWorld } from "../world.ts";
import { type ModuleAnswer, moduleOracle, type ModuleParameters, type ModuleSizes } from "./oracle.ts";
import { inputOf, type ModuleResult, type ModuleTrial, type Part, rowsOf, stepOn } from "./trial.ts";

export interface ModuleSuiteOptions {
  readonly makeWorld: MakeWorld;
  /** Axes of the mesh beside those of the sequence must be "dp". */
  readonly arrangements: readonly Arrangement[];
}

/**
 * MultiAxisAttention over a backend equals MultiAxisAttention on one device: forward, dx and every parameter's gradient
 * are as exact as there, measured by attention between two linear layers in float64; and all ranks hold the same
 * gradients to the last bit. With a "dp" axis every row of ranks has sequences of its own, and gradients are their mean.
 */
export function moduleSuite({ makeWorld, arrangements }: ModuleSuiteOptions): Case[] {
  return arrangements.flatMap((arrangement) =>
    moduleTrials().map((trial) => ({
      name: `MultiAxisAttention, ${arrangement.backend.name} on ${formatMesh(arrangement.mesh)}: ${trial.name}`,
      run: () => trainsAsOne(makeWorld, arrangement, trial),
    })),
  );
}

function moduleTrials(): ModuleTrial[] {
  const [contiguous, zigzag, striped, ragged] = placements();
  const sizes = { batch: 2, length: 37, embed: 24, heads: 4, kvHeads: 4, headDim: 6 };
  const grouped = { ...sizes, kvHeads: 2, headDim: 8 };
  const plain = { sizes, dtype: "float32", useCheckpoint: false } as const;
  const documentOf = (position: number) => (position < 11 ? 0 : 1);
  return [
    { ...plain, name: "full, contiguous", mask: full(), sees: () => true, placement: contiguous! },
    { ...plain, name: "causal, zigzag", mask: causal(), sees: (q, k) => k <= q, placement: zigzag! },
    {
      ...plain,
      name: "window, striped, grouped heads, checkpointed",
      sizes: grouped,
      useCheckpoint: true,
      mask: slidingWindow(9),
      sees: (q, k) => k <= q && k > q - 9,
      placement: striped!,
    },
    {
      ...plain,
      name: "documents, ragged, bfloat16",
      dtype: "bfloat16",
      mask: documents([11, 26]),
      sees: (q, k) => documentOf(q) === documentOf(k),
      placement: ragged!,
    },
  ];
}

async function trainsAsOne(makeWorld: MakeWorld, arrangement: Arrangement, trial: ModuleTrial): Promise<void> {
  const { mesh, axes, backend } = arrangement;
  const sequences = sequencesOf(mesh, axes);
  const one = await onOneDevice(makeWorld, trial, sequences);
  const ranks = await onWorld(makeWorld, { size: ranksOf(mesh), mesh, dress: poisoned }, async (ctx) => {
    const sequence = sequenceOf(ctx, axes);
    const result = await stepOn(ctx, trial, { arrangement, sequence, sequences });
    return {
      result,
      errors: errorsOf(result, one.answers[sequence]!, { rows: rowsOf(ctx, trial, arrangement), sizes: trial.sizes }),
    };
  });
  for (const name of gradientNames) {
    for (const [rank, { result }] of ranks.entries()) {
      checkEqual(result.gradients[name], ranks[0]!.result.gradients[name], `${name} on rank ${rank} and on rank 0`);
    }
    const errors = errorSum(ranks[0]!.result.gradients[name], one.gradients[name]);
    checkErrors(errors, { ...gate(name, one.local[name], one.gradients[name]), partial: trial.dtype });
  }
  for (const name of ["out", "dx"] as const) {
    const expected = concatenated(one.answers.map((answer) => answer[name]));
    checkErrors(joined(ranks.map(({ errors }) => errors[name])), gate(name, one.local[name], expected));
  }

  function gate(name: string, own: ErrorSum, expected: Float64Array): Gate {
    return { local: own, expected, lse: one.lse, what: `${backend.name}, ${trial.name}: ${name}` };
  }
}

const gradientNames = ["qkv_proj.weight", "qkv_proj.bias", "out_proj.weight", "out_proj.bias"] as const;

/** What is right, and how far from it one device is that has all sequences to itself. */
interface OneDevice {
  /** By sequence. */
  readonly answers: readonly ModuleAnswer[];
  /** Their mean. */
  readonly gradients: ModuleParameters;
  readonly local: Readonly<Record<(typeof gradientNames)[number] | "out" | "dx", ErrorSum>>;
  readonly lse: number;
}

async function onOneDevice(makeWorld: MakeWorld, trial: ModuleTrial, sequences: number): Promise<OneDevice> {
  const arrangement = { mesh: { sp: 1 }, axes: [], backend: local() };
  const steps: { result: ModuleResult; answer: ModuleAnswer }[] = [];
  for (let sequence = 0; sequence < sequences; sequence++) {
    // A world of its own for each: the weights that a context draws are numbered.
    const [result] = await onWorld(makeWorld, { size: 1 }, (ctx) =>
      stepOn(ctx, trial, { arrangement, sequence, sequences }),
    );
    steps.push({ result: result!, answer: answerOf(trial, result!.parameters, { sequence, sequences }) });
  }
  const everywhere = Array.from({ length: trial.sizes.length }, (_, i) => i);
  const errors = steps.map(({ result, answer }) => errorsOf(result, answer, { rows: everywhere, sizes: trial.sizes }));
  const gradients = meanOf(steps.map(({ answer }) => answer.gradients));
  const found = meanOf(steps.map(({ result }) => result.gradients));
  const own = Object.fromEntries(gradientNames.map((name) => [name, errorSum(found[name], gradients[name])]));
  return {
    answers: steps.map(({ answer }) => answer),
    gradients,
    local: {
      ...(own as Record<(typeof gradientNames)[number], ErrorSum>),
      out: joined(errors.map(({ out }) => out)),
      dx: joined(errors.map(({ dx }) => dx)),
    },
    lse: Math.max(...steps.map(({ answer }) => answer.lse)),
  };
}

function answerOf(
  trial: ModuleTrial,
  parameters: ModuleParameters,
  { sequence, sequences }: Omit<Part, "arrangement">,
): ModuleAnswer {
  const part = (values: Float64Array) => {
    const one = values.length / sequences;
    return values.subarray(sequence * one, (sequence + 1) * one);
  };
  const { sizes, sees } = trial;
  const x = part(inputOf(trial, sequences, 1));
  return moduleOracle({ sizes, sees, parameters, x, dOut: part(inputOf(trial, sequences, 2)) });
}

function meanOf(all: readonly ModuleParameters[]): ModuleParameters {
  const mean = (name: (typeof gradientNames)[number]) =>
    all[0]![name].map((_, i) => all.reduce((sum, each) => sum + each[name][i]!, 0) / all.length);
  return Object.fromEntries(gradientNames.map((name) => [name, mean(name)])) as unknown as ModuleParameters;
}

/** The errors of some rows of out and dx. */
function errorsOf(
  result: ModuleResult,
  answer: ModuleAnswer,
  { rows, sizes }: { rows: readonly number[]; sizes: ModuleSizes },
): { out: ErrorSum; dx: ErrorSum } {
  const { embed, length } = sizes;
  const mine = (values: Float64Array) => takeRows(values, rows, { rows: length, width: embed });
  return { out: errorSum(result.out, mine(answer.out)), dx: errorSum(result.dx, mine(answer.dx)) };
}
