import { slicesToMaskMod } from "@mosaic/conformance";
import { masks } from "@mosaic/core";
import type { ChosenChunks } from "../../src/index.ts";
import { createInput, type Trial, createUpstream } from "../step.ts";
import { derivatives } from "./derivatives.ts";
import { type RoutedReference, type FrozenRouting, mathematics, canAttend, type Problem } from "./mathematics.ts";
import { cut, softmax, total } from "./rows.ts";

/** What a step should give, by the mathematics in float64. */
export interface Expected {
  readonly out: Float64Array;
  readonly dx: Float64Array;
  readonly gradients: Readonly<Record<string, Float64Array>>;
  readonly answers: readonly RoutedReference[];
  readonly loss: number;
}

/** The step of all sequences of a batch, with the chunks that were chosen. */
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
  const values = Object.fromEntries(Object.entries(parameters).map(([name, of]) => [name, Float64Array.from(of)]));
  const x = Float64Array.from(createInput(trial));
  const upstream = createUpstream(trial);
  const width = trial.length * trial.options.embedDim;
  const sequences = chosen.map((ofBatch, b): Sequence => {
    const [own, dOut] = [x, upstream].map((all) => all.subarray(b * width, (b + 1) * width)) as [
      Float64Array,
      Float64Array,
    ];
    const rows = cut(own, problem.embed);
    const begin = { chosen: ofBatch, mass: [], peak: [], x: rows };
    const { logRouting } = mathematics(problem, values, rows, { ...begin, logRouting: zeros(chunks.length) });
    const { mass, peak } = mathematics(problem, values, rows, { ...begin, logRouting });
    return { x: own, dOut: cut(dOut, problem.embed), frozen: { chosen: ofBatch, logRouting, mass, peak, x: rows } };
  });
  const answer = ({ x: own, frozen }: Sequence): RoutedReference =>
    mathematics(problem, values, cut(own, problem.embed), frozen);
  const computeLoss = (sequence: Sequence): number =>
    sequenceLoss(trial, problem, { ...sequence, answer: answer(sequence), chosen });
  const loss = (): number => total(sequences.map(computeLoss));
  const answers = sequences.map(answer);
  return {
    out: Float64Array.from(answers.flatMap(({ out }) => out.flat())),
    // Sequences do not meet.
    dx: Float64Array.from(sequences.flatMap((sequence) => [...derivatives(sequence.x, () => computeLoss(sequence))])),
    gradients: Object.fromEntries(Object.entries(values).map(([name, of]) => [name, derivatives(of, loss)])),
    answers,
    loss: loss(),
  };
}

const zeros = (n: number): number[][] => Array.from({ length: n }, () => new Array<number>(n).fill(0));

export function createProblem({ options, length }: Trial, chunks: readonly (readonly number[])[]): Problem {
  const { embedDim: embed, numHeads, summaryDim = 64, metaHeads = 4, summaryHeads = numHeads } = options;
  const { combine = "soft", gate = true, numKvHeads = numHeads, headDim = embed / numHeads } = options;
  const { mask = options.causal ? masks.causal() : masks.full() } = options;
  const maskMod = slicesToMaskMod(mask.slices(length, length));
  const everyone = Array.from({ length }, (_, at) => at);
  const looksBack = everyone.every((query) => everyone.every((key) => key <= query || !maskMod(query, key)));
  const sizes = { embed, numHeads, numKvHeads, headDim, summaryDim, metaHeads, summaryHeads };
  return { ...sizes, combine, gate, causal: looksBack, chunks, isVisible: maskMod };
}

interface Sequence {
  readonly x: Float64Array;
  readonly dOut: readonly (readonly number[])[];
  readonly frozen: FrozenRouting;
}

/** Σ out·dOut and the auxiliary losses, a sequence's part of the mean over the batch. */
function sequenceLoss(
  { losses = [0, 0, 0], pool = "peak" }: Trial,
  problem: Problem,
  { answer, dOut, frozen, chosen }: Sequence & { answer: RoutedReference; chosen: ChosenChunks },
): number {
  const { out, routing, logRouting, scores } = answer;
  const { chunks } = problem;
  const count = chunks.length;
  const rows = chunks.flatMap((_, i) => (chunks.some((_, j) => canAttend(problem, i, j)) ? [i] : []));
  const picks = chosen.flat(2);
  const mean = Math.max(1, rows.length * chosen.length);
  const balance = total(
    chunks.map((_, j) => {
      const share = picks.length === 0 ? 0 : picks.filter((pick) => pick === j).length / picks.length;
      return count * share * total(rows.map((i) => routing[i]![j]!));
    }),
  );
  const finite = (x: number): number => (Number.isFinite(x) ? x : 0);
  const entropy = -total(rows.map((i) => total(routing[i]!.map((p, j) => p * finite(logRouting[i]![j]!)))));
  const target = pool === "peak" ? frozen.peak : frozen.mass;
  const mass = -total(
    rows.map((i) => {
      const picked = frozen.chosen[i]!;
      const weights = softmax(picked.map((j) => scores[i]![j]!));
      return total(picked.map((j, t) => target[i]![j]! * Math.log(weights[t]!)));
    }),
  );
  const main = total(out.map((row, i) => total(row.map((value, e) => value * dOut[i]![e]!))));
  return main + (losses[0] * balance + losses[1] * entropy + losses[2] * mass) / mean;
}
