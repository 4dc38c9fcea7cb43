import { describe, test } from "vitest";
import { checkDecoding } from "./random-decoding.ts";

const shape = { numHeads: 4, numKvHeads: 2, headDim: 16, steps: 60 } as const;

describe("decoding is as exact as one kernel over all keys and identical on every rank", () => {
  test.each([1, 2, 3, 4, 5, 6, 7, 8])("%d ranks, blocks of 8", (ranks) =>
    checkDecoding({ ...shape, ranks, blockSize: 8, dtype: "float32", seed: ranks }),
  );

  test.each([1, 3, 4])("%d ranks, a sliding window", (ranks) =>
    checkDecoding({ ...shape, ranks, blockSize: 8, dtype: "float32", slidingWindow: 21, seed: 20 + ranks }),
  );

  test.each([1, 2, 5])("%d ranks, bfloat16", (ranks) =>
    checkDecoding({ ...shape, ranks, blockSize: 16, dtype: "bfloat16", seed: 40 + ranks }),
  );

  test.each([1, 2])("%d ranks, blocks of 1, a head for each KV head", (ranks) =>
    checkDecoding({ ...shape, numKvHeads: 4, ranks, blockSize: 1, dtype: "float32", seed: 60 + ranks }),
  );
});
