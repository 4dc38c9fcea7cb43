import type { Kernels, NormStats } from "../../src/kernels/kernels.ts";
import type { Tensor } from "../../src/tensor.ts";
import { addresses, type Memory } from "./memory.ts";

// Kernels that operate on the last axis: E is its length, N the number of rows.

const dot = (a: readonly number[], b: readonly number[]) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);
const total = (row: readonly number[]) => row.reduce((sum, value) => sum + value, 0);

type Rows = Pick<
  Kernels,
  | "rowDot"
  | "reduce"
  | "softmax"
  | "softmaxBackward"
  | "layerNorm"
  | "layerNormBackward"
  | "rmsNorm"
  | "rmsNormBackward"
  | "rotary"
>;

export function rows(memory: Memory): Rows {
  const listRows = (x: Tensor): number[][] => {
    const values = memory.load(x);
    const length = x.shape.at(-1)!;
    return Array.from({ length: length === 0 ? 0 : values.length / length }, (_, i) =>
      values.slice(i * length, (i + 1) * length),
    );
  };
  const accumulate = (out: Tensor | null, values: readonly number[]) => {
    if (!out) return;
    const accumulated = memory.load(out);
    memory.store(
      out,
      values.map((value, i) => accumulated[i]! + value),
    );
  };

  function forward(out: Tensor, x: Tensor, norm: Parameters<Kernels["layerNorm"]>[2], stats: NormStats): void {
    const weight = norm.weight && memory.load(norm.weight);
    const bias = norm.bias && memory.load(norm.bias);
    const means: number[] = [];
    const rstds: number[] = [];
    const result = listRows(x).flatMap((row) => {
      const mean = stats.mean ? total(row) / row.length : 0;
      const rstd = 1 / Math.sqrt(total(row.map((value) => (value - mean) ** 2)) / row.length + norm.epsilon);
      means.push(mean);
      rstds.push(rstd);
      return row.map((value, e) => (value - mean) * rstd * (weight?.[e] ?? 1) + (bias?.[e] ?? 0));
    });
    if (stats.mean) memory.store(stats.mean, means);
    memory.store(stats.rstd, rstds);
    memory.store(out, result);
  }

  const backward: Kernels["layerNormBackward"] = (grads, x, dOut, weight, stats) => {
    const means = stats.mean && memory.load(stats.mean);
    const rstds = memory.load(stats.rstd);
    const scale = weight && memory.load(weight);
    const dWeight = new Array<number>(x.shape.at(-1)!).fill(0);
    const dBias = [...dWeight];
    const dOuts = listRows(dOut);
    const dx = listRows(x).flatMap((row, n) => {
      const unit = row.map((value) => (value - (means?.[n] ?? 0)) * rstds[n]!);
      const dNormalized = dOuts[n]!.map((value, e) => value * (scale?.[e] ?? 1));
      for (const [e, value] of dOuts[n]!.entries()) {
        dWeight[e]! += value * unit[e]!;
        dBias[e]! += value;
      }
      const projection = dot(dNormalized, unit) / row.length;
      const meanGradient = means ? total(dNormalized) / row.length : 0;
      return dNormalized.map((value, e) => rstds[n]! * (value - meanGradient - unit[e]! * projection));
    });
    memory.store(grads.dx, dx);
    accumulate(grads.dWeight, dWeight);
    accumulate(grads.dBias, dBias);
  };

  return {
    rowDot(out, a, b) {
      const rowsB = listRows(b);
      memory.store(
        out,
        listRows(a).map((row, i) => dot(row, rowsB[i]!)),
      );
    },
    reduce(kind, out, x) {
      const result = new Map<number, number>();
      const targets = addresses(out, x.shape);
      for (const [i, value] of memory.load(x).entries()) {
        const partialResult = result.get(targets[i]!);
        result.set(
          targets[i]!,
          partialResult === undefined ? value : kind === "sum" ? partialResult + value : Math.max(partialResult, value),
        );
      }
      memory.store(
        out,
        addresses(out).map((at) => result.get(at)!),
      );
    },
    softmax(out, x) {
      const result = listRows(x).flatMap((row) => {
        const maxValue = Math.max(...row);
        if (maxValue === -Infinity) return row.map(() => 0);
        const exponentials = row.map((value) => Math.exp(value - maxValue));
        return exponentials.map((value) => value / total(exponentials));
      });
      memory.store(out, result);
    },
    softmaxBackward(dx, out, dOut) {
      const dOuts = listRows(dOut);
      const result = listRows(out).flatMap((row, n) => {
        const projection = dot(row, dOuts[n]!);
        return row.map((value, e) => value * (dOuts[n]![e]! - projection));
      });
      memory.store(dx, result);
    },
    layerNorm: forward,
    layerNormBackward: backward,
    rmsNorm: forward,
    rmsNormBackward: backward,
    rotary(out, x, { cos, sin, interleaved, inverse }) {
      const [cosines, sines] = [listRows(cos), listRows(sin)];
      const result = listRows(x).flatMap((row, n) => {
        const [c, s] = [cosines, sines].map((table) => table[n % table.length]!) as [number[], number[]];
        const pairs = c.length;
        const rotatedRow = [...row];
        for (const i of c.keys()) {
          const [firstIndex, secondIndex] = interleaved ? [2 * i, 2 * i + 1] : [i, i + pairs];
          const [a, b, sine] = [row[firstIndex]!, row[secondIndex]!, inverse ? -s[i]! : s[i]!];
          rotatedRow[firstIndex] = a * c[i]! - b * sine;
          rotatedRow[secondIndex] = b * c[i]! + a * sine;
        }
        return rotatedRow;
      });
      memory.store(out, result);
    },
  };
}
