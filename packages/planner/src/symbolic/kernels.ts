import type { Kernels, Tensor, Tile } from "@mosaic/core";
import type { RankRecord } from "./rank-record.ts";
import { codeOf } from "./tape.ts";

/** Kernels that write down their operands. Those that move or sum rows of attention have events of their own. */
export function symbolicKernels(record: RankRecord): Kernels {
  const { names } = record;
  const views = (tensors: readonly (Tensor | null)[]): number[] =>
    tensors.filter((tensor) => tensor !== null).map((tensor) => record.viewOf(tensor));
  const view = (tensor: Tensor): number => record.viewOf(tensor);
  const rows = (at: number, tile: Tile): void => {
    record.set(at, names.rowsOf(tile.q));
    record.set(at + 1, names.rowsOf(tile.k));
    record.set(at + 2, names.maskOf(tile.mask));
  };
  const compute = (name: string, outputs: readonly (Tensor | null)[], inputs: readonly (Tensor | null)[]): void => {
    const written = views(outputs);
    record.push(codeOf.compute, [names.word(name), written.length, ...written, ...views(inputs)]);
  };
  return {
    attend({ out, lse }, q, { k, v }, tile) {
      const at = record.open(codeOf.attend, 8);
      record.set(at, view(out));
      record.set(at + 1, view(lse));
      record.set(at + 2, view(q));
      record.set(at + 3, view(k));
      record.set(at + 4, view(v));
      rows(at + 5, tile);
    },
    attendBackward({ dq, dk, dv }, q, { dOut, lse, delta }, { k, v }, tile) {
      const at = record.open(codeOf.attendBackward, 12);
      record.set(at, view(dq));
      record.set(at + 1, view(dk));
      record.set(at + 2, view(dv));
      record.set(at + 3, view(q));
      record.set(at + 4, view(dOut));
      record.set(at + 5, view(lse));
      record.set(at + 6, view(delta));
      record.set(at + 7, view(k));
      record.set(at + 8, view(v));
      rows(at + 9, tile);
    },
    merge: (into, from) => record.push(codeOf.merge, [view(into.out), view(into.lse), view(from.out), view(from.lse)]),
    rowDot: (out, a, b) => record.push(codeOf.rowDot, [view(out), view(a), view(b)]),
    fill: (out, value) => record.push(codeOf.fill, [view(out), names.word(String(value))]),
    copy: (out, x) => record.push(codeOf.copy, [view(out), view(x)]),
    binary(op, out, a, b) {
      if (op === "add") record.push(codeOf.add, [view(out), view(a), view(b)]);
      else compute(op, [out], [a, b]);
    },
    scalar: (op, out, x) => compute(op, [out], [x]),
    unary: (op, out, x) => compute(op, [out], [x]),
    unaryBackward: (op, dx, x, dy) => compute(`${op}Backward`, [dx], [x, dy]),
    reduce: (kind, out, x) => compute(kind, [out], [x]),
    matmul: (out, a, b, accumulate) => compute("matmul", [out], [a, b, accumulate ? out : null]),
    softmax: (out, x) => compute("softmax", [out], [x]),
    softmaxBackward: (dx, out, dOut) => compute("softmaxBackward", [dx], [out, dOut]),
    layerNorm: (out, x, { weight, bias }, { mean, rstd }) => compute("layerNorm", [out, mean, rstd], [x, weight, bias]),
    layerNormBackward: ({ dx, dWeight, dBias }, x, dOut, weight, { mean, rstd }) =>
      compute("layerNormBackward", [dx, dWeight, dBias], [x, dOut, weight, mean, rstd]),
    rmsNorm: (out, x, { weight, bias }, { rstd }) => compute("rmsNorm", [out, rstd], [x, weight, bias]),
    rmsNormBackward: ({ dx, dWeight, dBias }, x, dOut, weight, { rstd }) =>
      compute("rmsNormBackward", [dx, dWeight, dBias], [x, dOut, weight, rstd]),
    random: (out) => compute("random", [out], []),
    dropout: (out, x) => compute("dropout", [out], [x]),
    gatherRows: (out, table, index) => compute("gatherRows", [out], [table, index]),
    scatterAddRows: (into, x, index) => compute("scatterAddRows", [into], [into, x, index]),
    crossEntropy: ({ loss, lse, counted }, x, target) => compute("crossEntropy", [loss, lse, counted], [x, target]),
    crossEntropyBackward: (dx, { x, target, lse }, dLoss) =>
      compute("crossEntropyBackward", [dx], [x, target, lse, dLoss]),
    adam: ({ parameter, first, second }, gradient, { kind }) =>
      compute(kind, [parameter, first, second], [parameter, first, second, gradient]),
  };
}
