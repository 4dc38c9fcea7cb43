import type { DType } from "@mosaic/core";
import { type Case, check } from "../check.ts";
import { type AttentionProblem, smallestTopScoreGap } from "../oracle/attention.ts";
import { roundTo } from "../oracle/numbers.ts";
import {
  type AttentionCase,
  attentionRunner,
  causalExtent,
  causalCase,
  makeProblem,
  type AttentionSizes,
} from "./attention.ts";
import type { MakeDevice } from "./tensors.ts";

const sizes: AttentionSizes = { numHeads: 2, numKvHeads: 2, headDim: 16 };

/** Attention where scores are as large as float32 holds, −Infinity or denormal: as right as where they are ordinary. */
export function extremeScoreCases(make: MakeDevice, tolerance?: Readonly<Record<DType, number>>): Case[] {
  const runCase = attentionRunner(make, tolerance);
  return [
    { name: "attention: scores of 1e4", run: () => runCase(largeScoresCase("float32", 1e4)) },
    { name: "attention: scores of 1e4, float16", run: () => runCase(largeScoresCase("float16", 1e4)) },
    ...(["float32", "bfloat16"] as const).flatMap((dtype) => [
      ...[1e9, 1e10, 1e20, 1e37].map((size) => ({
        name: `attention: scores of ${size}, ${dtype}`,
        run: () => runCase(separatedScoresCase(dtype, size)),
      })),
      // 1/√80 is no power of 2: scaled scores are rounded, and gradients must round them as the forward did.
      {
        name: `attention: scores of 1e10, head size 80, ${dtype}`,
        run: () => runCase(separatedScoresCase(dtype, 1e10, 80)),
      },
      ...[2 ** 14, 2 ** 30, 2 ** 34, 2 ** 66, 2 ** 124].flatMap((size) =>
        ([1, -1] as const).map((sign) => ({
          name: `attention: equal scores of ${sign * size} have equal weights, ${dtype}`,
          run: () => runCase(equalScoresCase(dtype, size, sign)),
        })),
      ),
    ]),
    {
      name: "attention: scores of −Infinity, in part of a row and in a whole row",
      run: () => runCase(maskedKeysCase()),
    },
    { name: "attention: denormal scores", run: () => runCase(scaledInputsCase({ q: 1e-20, k: 1e-20 })) },
    { name: "attention: denormal queries", run: () => runCase(scaledInputsCase({ q: 1e-40 })) },
    { name: "attention: denormal values", run: () => runCase(scaledInputsCase({ v: 1e-40 })) },
  ];
}

/** The rounding of scores counts: all results inherit it. */
function largeScoresCase(dtype: DType, size: number): AttentionCase {
  const problem = makeProblem({ ...sizes, ...causalExtent, dtype, queryScale: size });
  return { ...causalCase(problem, dtype), factors: { out: size, dq: size, dk: size, dv: size } };
}

/** Scores so far apart that no rounding changes which is the largest: that key takes all. */
function separatedScoresCase(dtype: DType, size: number, headDim = sizes.headDim): AttentionCase {
  const problem = makeProblem({ ...sizes, headDim, ...causalExtent, dtype, queryScale: size });
  const [gap, minGap] = [smallestTopScoreGap(problem), 1e-5 * size];
  check(gap > minGap, `expected the two largest scores of a query to differ by more than ${minGap}, received ${gap}`);
  // What a score gets is 0 but for rounding, times a query.
  return { ...causalCase(problem, dtype), factors: { dk: size } };
}

/** Every score is `size` or minus that, exactly, whatever the order of sums: the larger ones share equally. */
function equalScoresCase(dtype: DType, size: number, sign: 1 | -1): AttentionCase {
  const problem = makeProblem({ ...sizes, ...causalExtent, dtype });
  const isFirstColumn = (i: number) => i % problem.headDim === 0;
  const getRow = (i: number) => Math.floor(i / problem.headDim);
  const q = problem.q.map((_, i) => (isFirstColumn(i) ? 4 * sign * size : 0));
  const k = problem.k.map((_, i) => (!isFirstColumn(i) ? 0 : sign < 0 || getRow(i) % 3 > 0 ? 1 : -1));
  // In one piece. A state's lse is float32, and of 2³⁰ and more keeps nothing of how many keys there were.
  const keys = [[{ start: 0, length: problem.keys, step: 1 }]];
  const gradients = { dq: Infinity, dk: Infinity, dv: Infinity };
  return { ...causalCase({ ...problem, q, k }, dtype), keys, factors: gradients };
}

/** Keys that no query takes notice of, with a query before all others; dq is 0 · −Infinity. */
function maskedKeysCase(): AttentionCase {
  const problem = makeProblem({ ...sizes, ...causalExtent });
  const isUnseenKey = (i: number) => [0, 1, 2, 20, 21, 40].includes(Math.floor(i / problem.headDim) % problem.keys);
  const isFirstColumn = (i: number) => i % problem.headDim === 0;
  const q = problem.q.map((x, i) => (isFirstColumn(i) ? 1 : x));
  const k = problem.k.map((x, i) => (isFirstColumn(i) && isUnseenKey(i) ? Number.NEGATIVE_INFINITY : x));
  return { ...causalCase({ ...problem, q, k }), factors: { dq: Infinity } };
}

function scaledInputsCase(factors: Partial<Record<"q" | "k" | "v", number>>): AttentionCase {
  const problem = makeProblem({ ...sizes, ...causalExtent });
  const scaleInput = (name: "q" | "k" | "v"): Float64Array =>
    problem[name].map((x) => roundTo(x * (factors[name] ?? 1), "float32"));
  const scaledProblem: AttentionProblem = { ...problem, q: scaleInput("q"), k: scaleInput("k"), v: scaleInput("v") };
  return causalCase(scaledProblem);
}
