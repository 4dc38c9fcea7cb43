import { describe, expect, test } from "vitest";
import { loadModel } from "../src/index.ts";
import { type Arrangement, arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { models, reference, tokens } from "./reference/references.ts";
import { writeFolder } from "./reference/weights.ts";

const prompt = tokens.values.slice(0, 9);
const names = Object.keys(models).filter((name) => models[name]!.errors.generated !== undefined);

/** Returns the ids that every rank generates. */
async function generateGreedy(name: string, arrangement: Arrangement, count: number): Promise<number[][]> {
  await using folder = await writeFolder(models[name]!);
  return await onRanks(arrangement, async (ctx) => {
    using model = await loadModel(ctx, folder.path, loadOptions(arrangement));
    const ids: number[] = [];
    for await (const { token } of model.generate({ tokens: prompt, maxNewTokens: count, eosTokenIds: [] }))
      ids.push(token);
    return ids;
  });
}

/**
 * Returns how many of transformers' ids are certain: those before the first step in which the two largest logits differ
 * by less than two float32 errors.
 */
function countCertainSteps(name: string): number {
  // The error of transformers, plus twice that for the tolerance of this implementation.
  const error = 3 * models[name]!.errors.generated!;
  const firstUncertainStep = reference(`${name}.margins`).findIndex((margin) => margin < 2 * error);
  return firstUncertainStep < 0 ? 200 : firstUncertainStep;
}

describe.each(names)("%s", (name) => {
  const expected = Array.from(reference(`${name}.ids`));

  test("generates the greedy ids of transformers in 200 steps, up to the first near tie of logits", async () => {
    const [ids] = await generateGreedy(name, oneRank, 200);
    const numCertainSteps = countCertainSteps(name);
    expect(numCertainSteps).toBeGreaterThan(100);
    expect(ids).toHaveLength(200);
    expect(ids!.slice(0, numCertainSteps)).toEqual(expected.slice(0, numCertainSteps));
  });

  test.each(arrangements.map((each) => [each.name, each] as const))(
    "generates the same ids on every rank of %s",
    async (_, arrangement) => {
      const count = Math.min(40, countCertainSteps(name));
      for (const ids of await generateGreedy(name, arrangement, count)) expect(ids).toEqual(expected.slice(0, count));
    },
  );
});
