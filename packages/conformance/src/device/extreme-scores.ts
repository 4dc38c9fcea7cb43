import type { DType } from "@mosaic/core";
import { type Case, check } from "../check.ts";
import { type AttentionProblem, smallestTopScoreGap } from "../oracle/attention.ts";
import { roundTo } from "../oracle/numbers.ts";
import type { AttentionCase } from "./attention-run.ts";
import { attentionRunner, causalExtent, causalCase, makeProblem, type AttentionSizes } from "./attention.ts";
import type { MakeDevice } from "./tensors.ts";

const sizes: AttentionSizes = { numHeads: 2, numKvHeads: 2, headDim: 16 };

/**
 * Returns cases of scores that are as large as float32 can represent, −Infinity or denormal. Results must be as
 * accurate as for ordinary scores.
 */
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
      // 1/√80 is not a power of 2, so scaled scores are rounded. The backward must round them as the forward did.
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

/** Returns a case in which the rounding error of scores dominates and affects all results. */
function largeScoresCase(dtype: DType, size: number): AttentionCase {
  const problem = makeProblem({ ...sizes, ...causalExtent, dtype, queryScale: size });
  return { ...causalCase(problem, dtype), factors: { out: size, dq: size, dk: size, dv: size } };
}

/**
 * Returns a case of scores so far apart that rounding cannot change which is the largest. That key has all the weight.
 */
function separatedScoresCase(dtype: DType, size: number, headDim = sizes.headDim): AttentionCase {
  const problem = makeProblem({ ...sizes, headDim, ...causalExtent, dtype, queryScale: size });
  const [gap, minGap] = [smallestTopScoreGap(problem), 1e-5 * size];
  check(gap > minGap, `expected the two largest scores of a query to differ by more than ${minGap}, received ${gap}`);
  // The gradient of a score is 0 except for rounding. dk is that gradient multiplied by a query.
  return { ...causalCase(problem, dtype), factors: { dk: size } };
}

/**
 * Returns a case in which every score is exactly ±`size`, in any order of sums. The larger scores have equal weights.
 */
function equalScoresCase(dtype: DType, size: number, sign: 1 | -1): AttentionCase {
  const problem = makeProblem({ ...sizes, ...causalExtent, dtype });
  const isFirstColumn = (i: number) => i % problem.headDim === 0;
  const getRow = (i: number) => Math.floor(i / problem.headDim);
  const q = problem.q.map((_, i) => (isFirstColumn(i) ? 4 * sign * size : 0));
  const k = problem.k.map((_, i) => (!isFirstColumn(i) ? 0 : sign < 0 || getRow(i) % 3 > 0 ? 1 : -1));
  // Keys are in one block, because a state's lse is float32: at 2³⁰ and above it cannot represent the number of keys.
  const keys = [[{ start: 0, length: problem.keys, step: 1 }]];
  const gradients = { dq: Infinity, dk: Infinity, dv: Infinity };
  return { ...causalCase({ ...problem, q, k }, dtype), keys, factors: gradients };
}

/**
 * Returns a case of keys whose scores are −Infinity, so that they have no weight. The first queries attend to no other
 * keys. dq is 0 · −Infinity and is not compared.
 */
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
