import { describe, expect, it } from "vitest";
import { logisticRegression, multiclassAuc, nearestNeighbors, rocAuc } from "../src/baselines.ts";
import { Random } from "../src/random.ts";

describe("rocAuc", () => {
  it.each([
    [[0, 0, 1, 1], [1, 2, 3, 4], 1],
    [[1, 1, 0, 0], [1, 2, 3, 4], 0],
    [[0, 1, 0, 1], [1, 1, 1, 1], 0.5],
    [[0, 1, 1], [2, 1, 3], 0.5],
    [[0, 0, 1], [1, 2, 2], 0.75],
  ])("of classes %j and scores %j is %d", (labels, scores, area) => expect(rocAuc(labels, scores)).toBe(area));

  it("is NaN if a score is NaN, or if there is only one class", () => {
    expect(rocAuc([0, 1, 1], [0.5, Number.NaN, 1])).toBeNaN();
    expect(rocAuc([1, 1], [0, 1])).toBeNaN();
  });

  it("is the fraction of pairs in order, with ties counted half", () => {
    const random = new Random(1);
    const labels = Array.from({ length: 60 }, () => random.integer(0, 1));
    const scores = Array.from({ length: 60 }, () => random.integer(0, 9));
    let [correctPairs, totalPairs] = [0, 0];
    for (const [i, a] of labels.entries()) {
      for (const [j, b] of labels.entries()) {
        if (a !== 1 || b !== 0) continue;
        totalPairs++;
        correctPairs += scores[i]! > scores[j]! ? 1 : scores[i] === scores[j] ? 0.5 : 0;
      }
    }
    expect(rocAuc(labels, scores)).toBeCloseTo(correctPairs / totalPairs, 12);
  });
});

describe("logisticRegression", () => {
  it("finds the weights from which the classes were drawn", () => {
    const random = new Random(2);
    const rows = 4000;
    const trainFeatures = Float32Array.from({ length: 2 * rows }, () => random.normal());
    const labels = Uint8Array.from({ length: rows }, (_, i) => {
      const p = 1 / (1 + Math.exp(-(2 * trainFeatures[2 * i]! - trainFeatures[2 * i + 1]! + 0.5)));
      return random.uniform() < p ? 1 : 0;
    });
    const testFeatures = Float32Array.from([0, 0, 1, 0, 0, 1]);
    const probabilities = logisticRegression({
      width: 2,
      classCount: 2,
      trainFeatures,
      labels,
      testFeatures,
    });
    const logits = [0, 1, 2].map((row) => Math.log(probabilities[2 * row + 1]! / probabilities[2 * row]!));
    expect(logits[0]).toBeCloseTo(0.5, 0);
    expect(logits[1]! - logits[0]!).toBeCloseTo(2, 0);
    expect(logits[2]! - logits[0]!).toBeCloseTo(-1, 0);
  });

  it("minimizes the loss with a penalty of ½ |w|² for two classes, without one for the intercept", () => {
    const trainFeatures = Float32Array.from([-2, -1, -0.5, 0.25, 1, 1.5, 3]);
    const labels = Uint8Array.from([0, 0, 1, 0, 1, 1, 1]);
    const testFeatures = Float32Array.from([...trainFeatures, 0, 1]);
    const probabilities = logisticRegression({ width: 1, classCount: 2, trainFeatures, labels, testFeatures });
    const logit = (row: number): number => Math.log(probabilities[2 * row + 1]! / probabilities[2 * row]!);
    const weight = logit(8) - logit(7);
    const errors = Array.from(labels, (label, row) => probabilities[2 * row + 1]! - label);
    const gradient = errors.reduce((sum, error, row) => sum + error * trainFeatures[row]!, weight);
    expect(Math.abs(weight)).toBeGreaterThan(0.1);
    expect(gradient).toBeCloseTo(0, 6);
    expect(errors.reduce((a, b) => a + b, 0)).toBeCloseTo(0, 5);
  });

  it("finds the weights of three classes, up to a common vector", () => {
    const random = new Random(3);
    const rows = 4000;
    const trainFeatures = Float32Array.from({ length: rows }, () => random.normal());
    // Scores 0, x and −x: the odds of class 1 against 2 are e^2x.
    const labels = Uint8Array.from(trainFeatures, (x) => {
      const powers = [1, Math.exp(x), Math.exp(-x)];
      const threshold = random.uniform() * powers.reduce((a, b) => a + b, 0);
      return threshold < powers[0]! ? 0 : threshold < powers[0]! + powers[1]! ? 1 : 2;
    });
    const probabilities = logisticRegression({
      width: 1,
      classCount: 3,
      trainFeatures,
      labels,
      testFeatures: Float32Array.from([1]),
    });
    expect(Math.log(probabilities[1]! / probabilities[0]!)).toBeCloseTo(1, 0);
    expect(Math.log(probabilities[1]! / probabilities[2]!)).toBeCloseTo(2, 0);
    expect(probabilities.reduce((a, b) => a + b, 0)).toBeCloseTo(1, 12);
  });

  it("separates separable classes without diverging", () => {
    const trainFeatures = Float32Array.from([-1, -2, 1, 2]);
    const task = { width: 1, classCount: 2, trainFeatures, labels: Uint8Array.from([0, 0, 1, 1]) };
    const [, low, , high] = logisticRegression({ ...task, testFeatures: Float32Array.from([-1.5, 1.5]) });
    expect(low).toBeLessThan(0.3);
    expect(high).toBeGreaterThan(0.7);
  });
});

describe("nearestNeighbors", () => {
  it("averages the classes of the nearest rows", () => {
    const task = {
      width: 1,
      classCount: 2,
      trainFeatures: Float32Array.from([0, 1, 2, 10, 11, 12]),
      labels: Uint8Array.from([0, 0, 1, 1, 1, 1]),
    };
    expect([...nearestNeighbors({ ...task, testFeatures: Float32Array.from([0.5, 11]) }, 3)]).toEqual([
      2 / 3,
      1 / 3,
      0,
      1,
    ]);
  });
});

describe("multiclassAuc", () => {
  it("is the AUC of class 1 for two classes, and the mean of one-against-rest AUCs for more", () => {
    expect(multiclassAuc([0, 1, 1], Float64Array.from([0.8, 0.2, 0.9, 0.1, 0.3, 0.7]), 2)).toBe(0.5);
    const rows = [0.5, 0.3, 0.2, 0.1, 0.6, 0.3, 0.4, 0.5, 0.1];
    // Rows 0 and 1 have the highest scores of their classes, and row 2 has the lowest score of its class.
    expect(multiclassAuc([0, 1, 2], Float64Array.from(rows), 3)).toBeCloseTo((1 + 1 + 0) / 3, 12);
  });
});
