import { describe, expect, it } from "vitest";
import { logisticRegression, nearestNeighbours, rocAuc } from "../src/baselines.ts";
import { Random } from "../src/random.ts";

describe("rocAuc", () => {
  it.each([
    [[0, 0, 1, 1], [1, 2, 3, 4], 1],
    [[1, 1, 0, 0], [1, 2, 3, 4], 0],
    [[0, 1, 0, 1], [1, 1, 1, 1], 0.5],
    [[0, 1, 1], [2, 1, 3], 0.5],
    [[0, 0, 1], [1, 2, 2], 0.75],
  ])("of classes %j and scores %j is %d", (labels, scores, area) => expect(rocAuc(labels, scores)).toBe(area));

  it("is the share of pairs in order", () => {
    const random = new Random(1);
    const labels = Array.from({ length: 60 }, () => random.integer(0, 1));
    const scores = Array.from({ length: 60 }, () => random.integer(0, 9));
    let [right, pairs] = [0, 0];
    for (const [i, a] of labels.entries()) {
      for (const [j, b] of labels.entries()) {
        if (a !== 1 || b !== 0) continue;
        pairs++;
        right += scores[i]! > scores[j]! ? 1 : scores[i] === scores[j] ? 0.5 : 0;
      }
    }
    expect(rocAuc(labels, scores)).toBeCloseTo(right / pairs, 12);
  });
});

describe("logisticRegression", () => {
  it("finds the weights that made the classes", () => {
    const random = new Random(2);
    const rows = 4000;
    const train = Float32Array.from({ length: 2 * rows }, () => random.normal());
    const labels = Uint8Array.from({ length: rows }, (_, i) => {
      const p = 1 / (1 + Math.exp(-(2 * train[2 * i]! - train[2 * i + 1]! + 0.5)));
      return random.uniform() < p ? 1 : 0;
    });
    const test = Float32Array.from([0, 0, 1, 0, 0, 1]);
    const logits = logisticRegression({ width: 2, train, labels, test }).map((p) => Math.log(p / (1 - p)));
    expect(logits[0]).toBeCloseTo(0.5, 0);
    expect(logits[1]! - logits[0]!).toBeCloseTo(2, 0);
    expect(logits[2]! - logits[0]!).toBeCloseTo(-1, 0);
  });

  it("stays finite where the classes are separable", () => {
    const task = { width: 1, train: Float32Array.from([-1, -2, 1, 2]), labels: Uint8Array.from([0, 0, 1, 1]) };
    const [low, high] = logisticRegression({ ...task, test: Float32Array.from([-1.5, 1.5]) });
    expect(low).toBeLessThan(0.3);
    expect(high).toBeGreaterThan(0.7);
  });
});

describe("nearestNeighbours", () => {
  it("averages the nearest", () => {
    const task = {
      width: 1,
      train: Float32Array.from([0, 1, 2, 10, 11, 12]),
      labels: Uint8Array.from([0, 0, 1, 1, 1, 1]),
    };
    expect([...nearestNeighbours({ ...task, test: Float32Array.from([0.5, 11]) }, 3)]).toEqual([1 / 3, 1]);
  });
});
