import { createHash } from "node:crypto";
import { type Context, local } from "@mosaic/core";
import { concatenate, takeRows } from "../backend/shard.ts";
import { sequenceIndex, countSequences } from "../backend/trials.ts";
import {
  type ErrorSum,
  computeErrorSum,
  measureMagnitude,
  mergeErrorSums,
  type ResultMeasurement,
  type Measurement,
} from "../measure/gate.ts";
import { type MakeWorld, runOnWorld } from "../world.ts";
import { type ModuleReference, moduleOracle, type ModuleParameters } from "./oracle.ts";
import {
  makeInput,
  type ModuleResult,
  type ModuleTrial,
  type SequenceAssignment,
  rankPositions,
  runStep,
} from "./trial.ts";
import type { Arrangement } from "../suite-options.ts";

const gradientNames = ["qkv_proj.weight", "qkv_proj.bias", "out_proj.weight", "out_proj.bias"] as const;
type GradientName = (typeof gradientNames)[number];

/** References of all sequences, and the errors of one device that computes all sequences. */
export interface SingleDeviceResult {
  /** One reference for each sequence. */
  readonly references: readonly ModuleReference[];
  /** Mean gradients of the references. */
  readonly gradients: ModuleParameters;
  readonly local: Readonly<Record<GradientName | "out" | "dx", ErrorSum>>;
}

/** Runs a trial on worlds of one rank, one for each sequence, because each fresh context draws the same weights. */
export async function runOnOneDevice(
  makeWorld: MakeWorld,
  trial: ModuleTrial,
  { mesh, axes }: Arrangement,
): Promise<SingleDeviceResult> {
  const arrangement = { mesh: { sp: 1 }, axes: [], backend: local() };
  const sequences = countSequences(mesh, axes);
  const stepResults: { result: ModuleResult; reference: ModuleReference }[] = [];
  for (let sequence = 0; sequence < sequences; sequence++) {
    const assignment = { arrangement, sequence, sequences };
    const [result] = await runOnWorld(makeWorld, { size: 1 }, (ctx) => runStep(ctx, trial, assignment));
    stepResults.push({ result: result!, reference: computeReference(trial, result!.parameters, assignment) });
  }
  const allPositions = Array.from({ length: trial.sizes.length }, (_, i) => i);
  const errors = stepResults.map(({ result, reference }) =>
    computeShardErrors(trial, { result, reference, rows: allPositions }),
  );
  const gradients = averageGradients(stepResults.map(({ reference }) => reference.gradients));
  const measuredGradients = averageGradients(stepResults.map(({ result }) => result.gradients));
  const gradientErrors = gradientNames.map((name) => [name, computeErrorSum(measuredGradients[name], gradients[name])]);
  return {
    references: stepResults.map(({ reference }) => reference),
    gradients,
    local: {
      ...(Object.fromEntries(gradientErrors) as Record<GradientName, ErrorSum>),
      out: mergeErrorSums(errors.map(({ out }) => out)),
      dx: mergeErrorSums(errors.map(({ dx }) => dx)),
    },
  };
}

/** Runs and measures one rank's part of a trial. Every rank of the mesh must call it. Ranks may be processes. */
export async function measureModule(
  ctx: Context,
  {
    arrangement,
    trial,
    singleDevice,
  }: { arrangement: Arrangement; trial: ModuleTrial; singleDevice: SingleDeviceResult },
): Promise<Measurement> {
  const { mesh, axes } = arrangement;
  const assignment = { arrangement, sequence: sequenceIndex(ctx, axes), sequences: countSequences(mesh, axes) };
  const result = await runStep(ctx, trial, assignment);
  const reference = singleDevice.references[assignment.sequence]!;
  const errors = computeShardErrors(trial, { result, reference, rows: rankPositions(ctx, trial, arrangement) });
  const measureSequenceMagnitude = (name: "out" | "dx") =>
    measureMagnitude(concatenate(singleDevice.references.map((each) => each[name])));
  const gradientMeasurements = gradientNames.map((name): [string, ResultMeasurement] => [
    name,
    {
      measuredError: computeErrorSum(result.gradients[name], singleDevice.gradients[name]),
      localError: singleDevice.local[name],
      expected: measureMagnitude(singleDevice.gradients[name]),
      partialSumDtype: trial.dtype,
    },
  ]);
  return {
    trial: trial.name,
    results: {
      out: { measuredError: errors.out, localError: singleDevice.local.out, expected: measureSequenceMagnitude("out") },
      dx: { measuredError: errors.dx, localError: singleDevice.local.dx, expected: measureSequenceMagnitude("dx") },
      ...Object.fromEntries(gradientMeasurements),
    },
    lse: Math.max(...singleDevice.references.map(({ lse }) => lse)),
    commonDigest: hashGradients(result.gradients),
  };
}

function hashGradients(gradients: ModuleParameters): string {
  const hash = createHash("sha256");
  for (const name of gradientNames) hash.update(gradients[name]);
  return hash.digest("hex");
}

function computeReference(
  trial: ModuleTrial,
  parameters: ModuleParameters,
  { sequence, sequences }: SequenceAssignment,
): ModuleReference {
  const takeSequence = (values: Float64Array) => {
    const valuesPerSequence = values.length / sequences;
    return values.subarray(sequence * valuesPerSequence, (sequence + 1) * valuesPerSequence);
  };
  const { sizes, maskMod } = trial;
  const x = takeSequence(makeInput(trial, sequences, 1));
  return moduleOracle({ sizes, maskMod, parameters, x, dOut: takeSequence(makeInput(trial, sequences, 2)) });
}

function averageGradients(gradientSets: readonly ModuleParameters[]): ModuleParameters {
  const averageGradient = (name: GradientName) =>
    gradientSets[0]![name].map(
      (_, i) => gradientSets.reduce((sum, each) => sum + each[name][i]!, 0) / gradientSets.length,
    );
  return Object.fromEntries(gradientNames.map((name) => [name, averageGradient(name)])) as unknown as ModuleParameters;
}

interface ShardResult {
  readonly result: ModuleResult;
  readonly reference: ModuleReference;
  readonly rows: readonly number[];
}

function computeShardErrors(
  { sizes }: ModuleTrial,
  { result, reference, rows }: ShardResult,
): Record<"out" | "dx", ErrorSum> {
  const takeShardRows = (values: Float64Array) => takeRows(values, rows, { rows: sizes.length, width: sizes.embed });
  return {
    out: computeErrorSum(result.out, takeShardRows(reference.out)),
    dx: computeErrorSum(result.dx, takeShardRows(reference.dx)),
  };
}
