import { slicesToMaskMod } from "@mosaic/conformance";
import { masks } from "@mosaic/core";
import type { ChosenChunks } from "../../src/index.ts";
import { createInput, type Trial, createUpstream } from "../step.ts";
import { computeDerivatives } from "./derivatives.ts";
import { type RoutedReference, type FrozenRouting, computeReference, canAttend, type Problem } from "./mathematics.ts";
import { splitRows, softmax, sumValues } from "./rows.ts";

/** The expected result of a step, computed in float64. */
export interface Expected {
  readonly out: Float64Array;
  readonly dx: Float64Array;
  readonly gradients: Readonly<Record<string, Float64Array>>;
  readonly answers: readonly RoutedReference[];
  readonly loss: number;
}

/** Computes the step of all sequences of a batch, with the chunks that were chosen. */
export function expectedStep(
  trial: Trial,
  {
    chunks,
    parameters,
    chosen,
  }: {
    chunks: readonly (readonly number[])[];
    parameters: Readonly<Record<string, ArrayLike<number>>>;
    chosen: ChosenChunks;
  },
): Expected {
  const problem = createProblem(trial, chunks);
  const values = Object.fromEntries(
    Object.entries(parameters).map(([name, parameterValues]) => [name, Float64Array.from(parameterValues)]),
  );
  const x = Float64Array.from(createInput(trial));
  const upstream = createUpstream(trial);
  const width = trial.length * trial.options.embedDim;
  const sequences = chosen.map((ofBatch, b): Sequence => {
    const [own, dOut] = [x, upstream].map((all) => all.subarray(b * width, (b + 1) * width)) as [
      Float64Array,
      Float64Array,
    ];
    const rows = splitRows(own, problem.embed);
    const initialRouting = { chosen: ofBatch, mass: [], peak: [], x: rows };
    const { logRouting } = computeReference(problem, values, rows, {
      ...initialRouting,
      logRouting: zeros(chunks.length),
    });
    const { mass, peak } = computeReference(problem, values, rows, { ...initialRouting, logRouting });
    return {
      x: own,
      dOut: splitRows(dOut, problem.embed),
      frozen: { chosen: ofBatch, logRouting, mass, peak, x: rows },
    };
  });
  const computeAnswer = ({ x: own, frozen }: Sequence): RoutedReference =>
    computeReference(problem, values, splitRows(own, problem.embed), frozen);
  const computeLoss = (sequence: Sequence): number =>
    sequenceLoss(trial, problem, { ...sequence, answer: computeAnswer(sequence), chosen });
  const loss = (): number => sumValues(sequences.map(computeLoss));
  const answers = sequences.map(computeAnswer);
  return {
    out: Float64Array.from(answers.flatMap(({ out }) => out.flat())),
    // Sequences are independent of each other.
    dx: Float64Array.from(
      sequences.flatMap((sequence) => [...computeDerivatives(sequence.x, () => computeLoss(sequence))]),
    ),
    gradients: Object.fromEntries(
      Object.entries(values).map(([name, parameterValues]) => [name, computeDerivatives(parameterValues, loss)]),
    ),
    answers,
    loss: loss(),
  };
}

const zeros = (n: number): number[][] => Array.from({ length: n }, () => new Array<number>(n).fill(0));

export function createProblem({ options, length }: Trial, chunks: readonly (readonly number[])[]): Problem {
  const { embedDim: embed, numHeads, summaryDim = 64, metaHeads = 4, summaryHeads = numHeads } = options;
  const { combine = "soft", gate = true, numKvHeads = numHeads, headDim = embed / numHeads } = options;
  const { scale = headDim ** -0.5 } = options;
  const { mask = options.causal ? masks.causal() : masks.full() } = options;
  const maskMod = slicesToMaskMod(mask.slices(length, length));
  const allPositions = Array.from({ length }, (_, at) => at);
  const isCausal = allPositions.every((query) => allPositions.every((key) => key <= query || !maskMod(query, key)));
  const sizes = { embed, numHeads, numKvHeads, headDim, summaryDim, metaHeads, summaryHeads };
  return { ...sizes, combine, gate, scale, causal: isCausal, chunks, isVisible: maskMod };
}

interface Sequence {
  readonly x: Float64Array;
  readonly dOut: readonly (readonly number[])[];
  readonly frozen: FrozenRouting;
}

/** Returns Σ out·dOut plus the auxiliary losses: the part of one sequence in the mean over the batch. */
function sequenceLoss(
  { losses = [0, 0, 0], pool = "peak" }: Trial,
  problem: Problem,
  { answer, dOut, frozen, chosen }: Sequence & { answer: RoutedReference; chosen: ChosenChunks },
): number {
  const { out, routing, logRouting, scores } = answer;
  const { chunks } = problem;
  const count = chunks.length;
  const rows = chunks.flatMap((_, i) => (chunks.some((_, j) => canAttend(problem, i, j)) ? [i] : []));
  const chosenChunks = chosen.flat(2);
  const numRows = Math.max(1, rows.length * chosen.length);
  const balance = sumValues(
    chunks.map((_, j) => {
      const share =
        chosenChunks.length === 0 ? 0 : chosenChunks.filter((pick) => pick === j).length / chosenChunks.length;
      return count * share * sumValues(rows.map((i) => routing[i]![j]!));
    }),
  );
  const finiteOrZero = (x: number): number => (Number.isFinite(x) ? x : 0);
  const entropy = -sumValues(
    rows.map((i) => sumValues(routing[i]!.map((p, j) => p * finiteOrZero(logRouting[i]![j]!)))),
  );
  const target = pool === "peak" ? frozen.peak : frozen.mass;
  const mass = -sumValues(
    rows.map((i) => {
      const chosenOfRow = frozen.chosen[i]!;
      const weights = softmax(chosenOfRow.map((j) => scores[i]![j]!));
      return sumValues(chosenOfRow.map((j, t) => target[i]![j]! * Math.log(weights[t]!)));
    }),
  );
  const mainLoss = sumValues(out.map((row, i) => sumValues(row.map((value, e) => value * dOut[i]![e]!))));
  return mainLoss + (losses[0] * balance + losses[1] * entropy + losses[2] * mass) / numRows;
}
