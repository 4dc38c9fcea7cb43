import type { Kernels } from "../../src/kernels/kernels.ts";
import type { Tensor } from "../../src/tensor.ts";
import { addresses, type Memory } from "./memory.ts";
import { uniform } from "./random.ts";

// Kernels for training.

type Training = Pick<
  Kernels,
  "dropout" | "gatherRows" | "scatterAddRows" | "crossEntropy" | "crossEntropyBackward" | "adam"
>;

export function training(memory: Memory): Training {
  const store = (out: Tensor, values: readonly number[]): void => memory.store(out, values);
  return {
    dropout(out, x, { probability, seed, stream, offset, strides }) {
      const index = addresses({ shape: out.shape, strides, offset });
      const isDropped = (i: number) => uniform(index[i]!, { seed, stream }) < probability;
      store(
        out,
        memory.load(x).map((value, i) => (isDropped(i) ? 0 : value / (1 - probability))),
      );
    },
    gatherRows(out, table, index) {
      const [width, values] = [table.shape[1]!, memory.load(table)];
      store(
        out,
        memory.load(index).flatMap((row) => values.slice(row * width, (row + 1) * width)),
      );
    },
    scatterAddRows(into, x, index) {
      const [width, accumulated, indices] = [into.shape[1]!, memory.load(into), memory.load(index)];
      for (const [i, value] of memory.load(x).entries())
        accumulated[indices[Math.floor(i / width)]! * width + (i % width)]! += value;
      store(into, accumulated);
    },
    crossEntropy(rows, x, target, { smoothing, ignored }) {
      const values = splitRows(memory.load(x), x.shape.at(-1)!);
      const targets = memory.load(target);
      const lses = values.map(logSumExp);
      const computeLoss = (line: readonly number[], row: number) =>
        line.reduce(
          (sum, value, i) =>
            sum + smoothedTarget(i, targets[row]!, { smoothing, count: line.length }) * (lses[row]! - value),
          0,
        );
      store(
        rows.loss,
        values.map((line, row) => (targets[row] === ignored ? 0 : computeLoss(line, row))),
      );
      store(rows.lse, lses);
      store(
        rows.counted,
        targets.map((each) => (each === ignored ? 0 : 1)),
      );
    },
    crossEntropyBackward(dx, { x, target, lse }, dLoss, { smoothing, ignored }) {
      const [targets, lses, upstreamGradients] = [memory.load(target), memory.load(lse), memory.load(dLoss)];
      const result = splitRows(memory.load(x), x.shape.at(-1)!).flatMap((line, row) =>
        line.map((value, i) => {
          if (targets[row] === ignored) return 0;
          const targetProbability = smoothedTarget(i, targets[row]!, { smoothing, count: line.length });
          return upstreamGradients[row]! * (Math.exp(value - lses[row]!) - targetProbability);
        }),
      );
      store(dx, result);
    },
    adam(state, gradient, { kind, rate, beta1, beta2, epsilon, decay, correction1, correction2, mix }) {
      const [p, m, g] = [memory.load(state.parameter), memory.load(state.first), memory.load(gradient)];
      const v = memory.load(state.second).map((x, i) => beta2 * x + (1 - beta2) * g[i]! ** 2);
      const root = v.map((x) => Math.sqrt(x / correction2) + epsilon);
      store(state.second, v);
      if (kind === "adamW") {
        const firstMoment = m.map((x, i) => beta1 * x + (1 - beta1) * g[i]!);
        store(state.first, firstMoment);
        store(
          state.parameter,
          p.map((x, i) => x * (1 - rate * decay) - ((rate / correction1) * firstMoment[i]!) / root[i]!),
        );
        return;
      }
      const update = g.map((x, i) => x / root[i]! + decay * p[i]!);
      const directionScale = rate * (beta1 * (1 - mix) - 1);
      store(
        state.parameter,
        p.map((x, i) => x + mix * (m[i]! - x) + directionScale * update[i]!),
      );
      store(
        state.first,
        m.map((z, i) => z - rate * update[i]!),
      );
    },
  };
}

function splitRows(values: readonly number[], length: number): number[][] {
  return Array.from({ length: values.length / length }, (_, i) => values.slice(i * length, (i + 1) * length));
}

function logSumExp(line: readonly number[]): number {
  const maxValue = Math.max(...line);
  return maxValue + Math.log(line.reduce((sum, value) => sum + Math.exp(value - maxValue), 0));
}

/** Returns the probability of class i in the smoothed target distribution. */
function smoothedTarget(i: number, target: number, { smoothing, count }: { smoothing: number; count: number }): number {
  return smoothing / count + (i === target ? 1 - smoothing : 0);
}
