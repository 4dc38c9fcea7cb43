import type { Kernels, Tensor } from "@mosaic/core";
import type { RankRecord } from "./rank-record.ts";

/** Kernels that write down their operands. Those that move or sum rows of attention have events of their own. */
export function symbolicKernels(record: RankRecord): Kernels {
  const { names } = record;
  const views = (tensors: readonly (Tensor | null)[]): number[] =>
    tensors.filter((tensor) => tensor !== null).map((tensor) => record.viewOf(tensor));
  const view = (tensor: Tensor): number => record.viewOf(tensor);
  const compute = (name: string, outputs: readonly (Tensor | null)[], inputs: readonly (Tensor | null)[]): void => {
    const written = views(outputs);
    record.push("compute", [names.word(name), written.length, ...written, ...views(inputs)]);
  };
  return {
    attend({ out, lse }, q, { k, v }, tile) {
      const rows = [names.rowsOf(tile.q), names.rowsOf(tile.k), names.maskOf(tile.mask)];
      record.push("attend", [view(out), view(lse), view(q), view(k), view(v), ...rows]);
    },
    attendBackward({ dq, dk, dv }, q, { dOut, lse, delta }, { k, v }, tile) {
      const rows = [names.rowsOf(tile.q), names.rowsOf(tile.k), names.maskOf(tile.mask)];
      const grads = [view(dq), view(dk), view(dv)];
      record.push("attendBackward", [...grads, view(q), view(dOut), view(lse), view(delta), view(k), view(v), ...rows]);
    },
    merge: (into, from) => record.push("merge", views([into.out, into.lse, from.out, from.lse])),
    rowDot: (out, a, b) => record.push("rowDot", views([out, a, b])),
    fill: (out, value) => record.push("fill", [view(out), names.word(String(value))]),
    copy: (out, x) => record.push("copy", views([out, x])),
    binary(op, out, a, b) {
      if (op === "add") record.push("add", views([out, a, b]));
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
