import type { DType } from "@mosaic/core";
import type { AttentionProblem } from "../oracle/attention.ts";
import { rounded } from "../oracle/numbers.ts";

/** A change to values that were normal numbers: scores become as large as float32 holds, −Infinity or denormal. */
export interface Values {
  readonly name: string;
  /**
   * Whether scores are so far apart that no rounding changes which is the largest of a row: that key takes all, and results
   * are as exact as those of ordinary scores, although an lse of 1e9 is rounded by 32.
   */
  readonly isApart: boolean;
  change(problem: AttentionProblem, dtype: DType): Pick<AttentionProblem, "q" | "k">;
}

/** Queries, and so scores, so many times as large. */
function scores(size: number, isApart: boolean): Values {
  return {
    name: `scores of ${size}`,
    isApart,
    change: ({ q, k }, dtype) => ({ q: q.map((x) => rounded(x * size, dtype)), k }),
  };
}

/** Every other key is one that no query takes notice of. */
const minusInfinity: Values = {
  name: "scores of −Infinity",
  isApart: false,
  change({ q, k, headDim }) {
    const first = (i: number) => i % headDim === 0;
    return {
      q: q.map((x, i) => (first(i) ? 1 : x)),
      k: k.map((x, i) => (first(i) && Math.floor(i / headDim) % 2 === 0 ? Number.NEGATIVE_INFINITY : x)),
    };
  },
};

const denormal: Values = {
  name: "denormal scores",
  isApart: false,
  change({ q, k }, dtype) {
    const tiny = (x: number) => rounded(x * 1e-20, dtype);
    return { q: q.map(tiny), k: k.map(tiny) };
  },
};

/** What a backend must be as exact on as on normal numbers. */
export const extremeValues: readonly Values[] = [
  scores(1e4, false),
  scores(1e9, true),
  scores(1e20, true),
  scores(1e37, true),
  minusInfinity,
  denormal,
];
