import { createHash } from "node:crypto";
import { type Context, local } from "@mosaic/core";
import { concatenated, takeRows } from "../backend/shard.ts";
import { type Arrangement, sequenceOf, sequencesOf } from "../backend/trials.ts";
import { type ErrorSum, errorSum, extentOf, joined, type Measured, type Measurement } from "../measure/gate.ts";
import { type MakeWorld, onWorld } from "../world.ts";
import { type ModuleAnswer, moduleOracle, type ModuleParameters } from "./oracle.ts";
import { inputOf, type ModuleResult, type ModuleTrial, type Part, rowsOf, stepOn } from "./trial.ts";

const gradientNames = ["qkv_proj.weight", "qkv_proj.bias", "out_proj.weight", "out_proj.bias"] as const;
type GradientName = (typeof gradientNames)[number];

/** What is right, and how far from it one device is that has all sequences to itself. */
export interface OneDevice {
  /** By sequence. */
  readonly answers: readonly ModuleAnswer[];
  /** Their mean. */
  readonly gradients: ModuleParameters;
  readonly local: Readonly<Record<GradientName | "out" | "dx", ErrorSum>>;
}

/** A trial on worlds of one rank, one for each sequence: the weights that a context draws are numbered. */
export async function onOneDevice(
  makeWorld: MakeWorld,
  trial: ModuleTrial,
  { mesh, axes }: Arrangement,
): Promise<OneDevice> {
  const arrangement = { mesh: { sp: 1 }, axes: [], backend: local() };
  const sequences = sequencesOf(mesh, axes);
  const steps: { result: ModuleResult; answer: ModuleAnswer }[] = [];
  for (let sequence = 0; sequence < sequences; sequence++) {
    const part = { arrangement, sequence, sequences };
    const [result] = await onWorld(makeWorld, { size: 1 }, (ctx) => stepOn(ctx, trial, part));
    steps.push({ result: result!, answer: answerOf(trial, result!.parameters, part) });
  }
  const everywhere = Array.from({ length: trial.sizes.length }, (_, i) => i);
  const errors = steps.map(({ result, answer }) => shardErrors(trial, { result, answer, rows: everywhere }));
  const gradients = meanGradients(steps.map(({ answer }) => answer.gradients));
  const found = meanGradients(steps.map(({ result }) => result.gradients));
  const ofGradients = gradientNames.map((name) => [name, errorSum(found[name], gradients[name])]);
  return {
    answers: steps.map(({ answer }) => answer),
    gradients,
    local: {
      ...(Object.fromEntries(ofGradients) as Record<GradientName, ErrorSum>),
      out: joined(errors.map(({ out }) => out)),
      dx: joined(errors.map(({ dx }) => dx)),
    },
  };
}

/** One rank's part of a trial, measured. Every rank of the mesh must call it; ranks may be processes. */
export async function measureModuleOn(
  ctx: Context,
  { arrangement, trial, one }: { arrangement: Arrangement; trial: ModuleTrial; one: OneDevice },
): Promise<Measurement> {
  const { mesh, axes } = arrangement;
  const part = { arrangement, sequence: sequenceOf(ctx, axes), sequences: sequencesOf(mesh, axes) };
  const result = await stepOn(ctx, trial, part);
  const answer = one.answers[part.sequence]!;
  const errors = shardErrors(trial, { result, answer, rows: rowsOf(ctx, trial, arrangement) });
  const whole = (name: "out" | "dx") => extentOf(concatenated(one.answers.map((each) => each[name])));
  const ofGradients = gradientNames.map((name): [string, Measured] => [
    name,
    {
      found: errorSum(result.gradients[name], one.gradients[name]),
      local: one.local[name],
      expected: extentOf(one.gradients[name]),
      partial: trial.dtype,
    },
  ]);
  return {
    trial: trial.name,
    results: {
      out: { found: errors.out, local: one.local.out, expected: whole("out") },
      dx: { found: errors.dx, local: one.local.dx, expected: whole("dx") },
      ...Object.fromEntries(ofGradients),
    },
    lse: Math.max(...one.answers.map(({ lse }) => lse)),
    common: digest(result.gradients),
  };
}

function digest(gradients: ModuleParameters): string {
  const hash = createHash("sha256");
  for (const name of gradientNames) hash.update(gradients[name]);
  return hash.digest("hex");
}

function answerOf(trial: ModuleTrial, parameters: ModuleParameters, { sequence, sequences }: Part): ModuleAnswer {
  const part = (values: Float64Array) => {
    const one = values.length / sequences;
    return values.subarray(sequence * one, (sequence + 1) * one);
  };
  const { sizes, sees } = trial;
  const x = part(inputOf(trial, sequences, 1));
  return moduleOracle({ sizes, sees, parameters, x, dOut: part(inputOf(trial, sequences, 2)) });
}

function meanGradients(all: readonly ModuleParameters[]): ModuleParameters {
  const mean = (name: GradientName) =>
    all[0]![name].map((_, i) => all.reduce((sum, each) => sum + each[name][i]!, 0) / all.length);
  return Object.fromEntries(gradientNames.map((name) => [name, mean(name)])) as unknown as ModuleParameters;
}

interface ShardOfResult {
  readonly result: ModuleResult;
  readonly answer: ModuleAnswer;
  readonly rows: readonly number[];
}

function shardErrors({ sizes }: ModuleTrial, { result, answer, rows }: ShardOfResult): Record<"out" | "dx", ErrorSum> {
  const mine = (values: Float64Array) => takeRows(values, rows, { rows: sizes.length, width: sizes.embed });
  return { out: errorSum(result.out, mine(answer.out)), dx: errorSum(result.dx, mine(answer.dx)) };
}
