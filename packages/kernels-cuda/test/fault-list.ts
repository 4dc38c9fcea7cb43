/** A fault in the kernels: `original` in `file` is replaced by `replacement`, at occurrence `occurrenceIndex`. */
export interface Fault {
  readonly name: string;
  readonly file: string;
  readonly original: string;
  readonly replacement: string;
  /** Zero-based. Default 0. */
  readonly occurrenceIndex?: number;
}

const TILE_FILE = "tile.cuh";
const ONLINE_SOFTMAX_FILE = "online_softmax.cuh";
const FORWARD_FILE = "attend_mma.cuh";
const GRADIENTS_FILE = "gradients.cuh";
const BACKWARD_FILE = "attend_backward_mma.cuh";
const VISIBLE_FILE = "visible.h";
const ITERATOR_FILE = "tile_iterator.cuh";
const SYNC_STATEMENT = "syncBlock();";
const WAIT_STATEMENT = "waitCopies<0>();";

/** Faults in the kernels for every GPU. The first ones are of one kind each. */
export const faults: readonly Fault[] = [
  { name: "wrong fragment", file: TILE_FILE, original: "b[0], b[1]);", replacement: "b[0], b[2]);" },
  {
    name: "no barrier before values are read",
    file: FORWARD_FILE,
    original: SYNC_STATEMENT,
    replacement: ";",
    occurrenceIndex: 1,
  },
  {
    name: "hidden keys end one late",
    file: ONLINE_SOFTMAX_FILE,
    original: "n * 8 + e >= end",
    replacement: "n * 8 + e > end",
  },
  {
    name: "backward: one stage for two",
    file: BACKWARD_FILE,
    original: "(step & 1) * 2 * kTileBytes<kRows",
    replacement: "0 * kTileBytes<kRows",
  },
  { name: "values not transposed", file: TILE_FILE, original: "loadMatrixTransposed(b,", replacement: "loadMatrix(b," },
  {
    name: "one reader without the permutation",
    file: TILE_FILE,
    original: "chunk0 + n + (lane >> 4))",
    replacement: "chunk0 + n)",
  },
  { name: "no barrier before keys are read", file: FORWARD_FILE, original: SYNC_STATEMENT, replacement: ";" },
  { name: "no wait for keys", file: FORWARD_FILE, original: WAIT_STATEMENT, replacement: "" },
  { name: "no wait for values", file: FORWARD_FILE, original: WAIT_STATEMENT, replacement: "", occurrenceIndex: 1 },
  {
    name: "wait for all copies but one",
    file: FORWARD_FILE,
    original: WAIT_STATEMENT,
    replacement: "waitCopies<1>();",
    occurrenceIndex: 1,
  },
  {
    name: "barrier in one lane",
    file: FORWARD_FILE,
    original: SYNC_STATEMENT,
    replacement: "if (lane == 0) syncBlock();",
  },
  { name: "masked a tile late", file: ITERATOR_FILE, original: "key0 + SIZE > fullEnd", replacement: "key0 > fullEnd" },
  {
    name: "last tile left out",
    file: ITERATOR_FILE,
    original: "if (key0 < end) return",
    replacement: "if (key0 + SIZE < end) return",
  },
  {
    name: "next part left out",
    file: ITERATOR_FILE,
    original: "part++;\n    seek();",
    replacement: "part = lastPart;",
  },
  {
    name: "sum seeded in four lanes",
    file: ONLINE_SOFTMAX_FILE,
    original: "(lane & 3) == 0 ? 1.f : 0.f",
    replacement: "1.f",
  },
  {
    name: "−∞ − −∞",
    file: ONLINE_SOFTMAX_FILE,
    original: "newMax == -infinity() ? 0.f : newMax",
    replacement: "newMax",
  },
  {
    name: "wrong head of keys",
    file: FORWARD_FILE,
    original: "kvHead = head / p.group",
    replacement: "kvHead = head % p.group",
  },
  { name: "backward: no barrier, by keys", file: BACKWARD_FILE, original: SYNC_STATEMENT, replacement: ";" },
  {
    name: "backward: no barrier, by queries",
    file: BACKWARD_FILE,
    original: SYNC_STATEMENT,
    replacement: ";",
    occurrenceIndex: 1,
  },
  {
    name: "backward: no wait, by queries",
    file: BACKWARD_FILE,
    original: WAIT_STATEMENT,
    replacement: "",
    occurrenceIndex: 1,
  },
  {
    name: "backward: hidden rows begin early",
    file: GRADIENTS_FILE,
    original: "n * 8 + e < begin",
    replacement: "n * 8 + e + 1 < begin",
  },
  {
    name: "backward: lse in one stage",
    file: BACKWARD_FILE,
    original: "(step & 1) * RowStatistics::kBytes",
    replacement: "0",
  },
  {
    name: "first row not beyond",
    file: VISIBLE_FILE,
    original: "distance / edge.slope) + 1",
    replacement: "distance / edge.slope)",
  },
];

const HOPPER_TILE_FILE = "hopper_tile.cuh";
const HOPPER_FORWARD_FILE = "attend_hopper.cuh";
const HOPPER_SHAPES_FILE = "hopper.h";
const HOPPER_BACKWARD_FILE = "attend_backward_hopper.cuh";
const FENCE_STATEMENT = "fenceWgmma();";

/** Faults in Hopper's kernels. The first ones are of one kind each. */
export const hopperFaults: readonly Fault[] = [
  {
    name: "strides of values swapped",
    file: HOPPER_TILE_FILE,
    original: "K * 16 * kSwizzleRowBytes, kSwizzleAtomBytes)",
    replacement: "kSwizzleAtomBytes, 16)",
  },
  { name: "keys not waited for", file: HOPPER_FORWARD_FILE, original: "keys.consumerWait(step);", replacement: "" },
  {
    name: "wrong parity of the barriers of free stages",
    file: HOPPER_TILE_FILE,
    original: "(step / kStages & 1) ^ 1",
    replacement: "step / kStages & 1",
  },
  {
    name: "no fence before scores",
    file: HOPPER_FORWARD_FILE,
    original: FENCE_STATEMENT,
    replacement: "",
    occurrenceIndex: 1,
  },
  {
    name: "all keys shifted by one",
    file: ITERATOR_FILE,
    original: "parts.part[part].key + key0",
    replacement: "parts.part[part].key + key0 + 1",
  },
  {
    name: "stride of keys",
    file: HOPPER_TILE_FILE,
    original: "+ inside, 16, kSwizzleAtomBytes);\n    wgmma",
    replacement: "+ inside, 16, 512);\n    wgmma",
  },
  {
    name: "values not transposed",
    file: HOPPER_TILE_FILE,
    original: "wgmmaRegisters<T, N, true>",
    replacement: "wgmmaRegisters<T, N, false>",
  },
  {
    name: "half a step in values",
    file: HOPPER_TILE_FILE,
    original: "b + k * 2 * kSwizzleAtomBytes",
    replacement: "b + k * kSwizzleAtomBytes",
  },
  {
    name: "all warpgroups take the same rows",
    file: HOPPER_TILE_FILE,
    original: "(panel * ROWS_A + rowA)",
    replacement: "(panel * ROWS_A)",
  },
  {
    name: "scores added to the last ones",
    file: HOPPER_TILE_FILE,
    original: "left, right, k > 0",
    replacement: "left, right, true",
  },
  {
    name: "left operand's rows swapped",
    file: HOPPER_TILE_FILE,
    original: "pack2<T>(s[k][0], s[k][1])",
    replacement: "pack2<T>(s[k][2], s[k][3])",
  },
  {
    name: "constant parity of the barriers of full stages",
    file: HOPPER_TILE_FILE,
    original: "step / kStages & 1); }\n  DEVICE void consumerRelease",
    replacement: "0); }\n  DEVICE void consumerRelease",
  },
  {
    name: "no fence after barriers are initialized",
    file: HOPPER_TILE_FILE,
    original: "fenceBarriers();",
    replacement: "",
  },
  {
    name: "no barrier after barriers are made",
    file: HOPPER_TILE_FILE,
    original: "  }\n  syncBlock();",
    replacement: "  }",
  },
  {
    name: "queries not waited for",
    file: HOPPER_FORWARD_FILE,
    original: "awaitPhase(qFullBarrier, 0);",
    replacement: "",
  },
  {
    name: "values not waited for",
    file: HOPPER_FORWARD_FILE,
    original: "values.consumerWait(step - 1);",
    replacement: "",
  },
  {
    name: "last values not waited for",
    file: HOPPER_FORWARD_FILE,
    original: "values.consumerWait(step);",
    replacement: "",
  },
  {
    name: "keys loaded where others are in use",
    file: HOPPER_FORWARD_FILE,
    original: "keys.producerAcquire(step);",
    replacement: "",
  },
  {
    name: "values loaded where others are in use",
    file: HOPPER_FORWARD_FILE,
    original: "values.producerAcquire(step);",
    replacement: "",
  },
  {
    name: "half of the bytes expected",
    file: HOPPER_FORWARD_FILE,
    original: "keys.fullBarrier(step), kPanelsBytes<kKeys, D>",
    replacement: "keys.fullBarrier(step), kPanelsBytes<kKeys, D> / 2",
  },
  {
    name: "one warpgroup releases a stage for all",
    file: HOPPER_FORWARD_FILE,
    original: "keys.init(1, 4 * Forward::kGroups)",
    replacement: "keys.init(1, 4)",
  },
  {
    name: "keys freed before they are used up",
    file: HOPPER_FORWARD_FILE,
    original: "order.arrive();",
    replacement: "order.arrive(); keys.consumerRelease(step);",
  },
  {
    name: "scores used before they are there",
    file: HOPPER_FORWARD_FILE,
    original: "waitWgmma<1>(s);",
    replacement: "",
  },
  {
    name: "wait for one group too few",
    file: HOPPER_FORWARD_FILE,
    original: "waitWgmma<1>(s);",
    replacement: "waitWgmma<2>(s);",
  },
  {
    name: "sums scaled before they are there",
    file: HOPPER_FORWARD_FILE,
    original: "waitWgmma<0>(acc);",
    replacement: "",
  },
  {
    name: "no fence before values",
    file: HOPPER_FORWARD_FILE,
    original: `${FENCE_STATEMENT}\n    startMatmul`,
    replacement: "startMatmul",
  },
  {
    name: "scores never committed",
    file: HOPPER_FORWARD_FILE,
    original: "commitWgmma();",
    replacement: "",
    occurrenceIndex: 1,
  },
  { name: "turn not passed", file: HOPPER_FORWARD_FILE, original: "order.arrive();", replacement: "" },
  {
    name: "tiles off the permutation's grid",
    file: HOPPER_FORWARD_FILE,
    original: "q = sharedBase(), stages",
    replacement: "q = sharedBase() + 64, stages",
  },
  {
    name: "tiles beyond what was asked for",
    file: HOPPER_FORWARD_FILE,
    original: "stages = q + kPanelsBytes<kRows, D>",
    replacement: "stages = q + 2 * kPanelsBytes<kRows, D>",
  },
  {
    name: "more registers than there are",
    file: HOPPER_SHAPES_FILE,
    original: "/ groups / 8 * 8",
    replacement: "/ groups / 8 * 8 + 8",
  },
  {
    name: "more registers than the block started with, though no more than a multiprocessor has",
    file: HOPPER_BACKWARD_FILE,
    original: "releaseRegisters<Keys::kShape.producerRegisters()>",
    replacement: "releaseRegisters<32>",
  },
  {
    name: "registers requested that no warpgroup released",
    file: HOPPER_FORWARD_FILE,
    original: "releaseRegisters<Forward::kShape.producerRegisters()>();",
    replacement: "",
  },
  {
    name: "wrong head of keys",
    file: HOPPER_FORWARD_FILE,
    original: "ownRange.head / p.base.group",
    replacement: "ownRange.head % p.base.group",
  },
  { name: "masked a tile late", file: ITERATOR_FILE, original: "key0 + SIZE > fullEnd", replacement: "key0 > fullEnd" },
  {
    name: "backward: lse in one stage",
    file: HOPPER_BACKWARD_FILE,
    original: "statistics + step % kStages * RowStatistics::kBytes",
    replacement: "statistics",
  },
  {
    name: "backward: lse not counted in",
    file: HOPPER_BACKWARD_FILE,
    original: "pipeline.init(1 + 3 * 32,",
    replacement: "pipeline.init(1,",
  },
  {
    name: "backward: lse overwrites a stage in use",
    file: HOPPER_BACKWARD_FILE,
    original: "pipeline.producerAcquire(step);\n      for",
    replacement: "for",
  },
  {
    name: "backward: q and dOut exchanged",
    file: HOPPER_BACKWARD_FILE,
    original: "startMatmul<T>(dk, ds, q)",
    replacement: "startMatmul<T>(dk, ds, g)",
  },
  {
    name: "backward: dP not waited for, by keys",
    file: HOPPER_BACKWARD_FILE,
    original: "waitWgmma<1>(dp);",
    replacement: "",
  },
  {
    name: "backward: dP not waited for, by queries",
    file: HOPPER_BACKWARD_FILE,
    original: "waitWgmma<0>(dp);",
    replacement: "waitWgmma<1>(dp);",
  },
  {
    name: "backward: freed before it is used up",
    file: HOPPER_BACKWARD_FILE,
    original: "waitWgmma<0>(s, dk, dv);\n      pipeline.consumerRelease(step);",
    replacement: "pipeline.consumerRelease(step);\n      waitWgmma<0>(s, dk, dv);",
  },
  {
    name: "backward: freed early, by queries",
    file: HOPPER_BACKWARD_FILE,
    original: "waitWgmma<0>(s, dq);\n      pipeline.consumerRelease(step);",
    replacement: "pipeline.consumerRelease(step);\n      waitWgmma<0>(s, dq);",
  },
  {
    name: "backward: next scores not waited for",
    file: HOPPER_BACKWARD_FILE,
    original: "pipeline.consumerWait(next);",
    replacement: "",
  },
  {
    name: "backward: no fence before dS K",
    file: HOPPER_BACKWARD_FILE,
    original: `packRows<T>(ds, s);\n      ${FENCE_STATEMENT}\n      startMatmul<T>(dq`,
    replacement: "packRows<T>(ds, s);\n      startMatmul<T>(dq",
  },
  {
    name: "backward: k and v exchanged",
    file: HOPPER_BACKWARD_FILE,
    original: "startMatmul<T>(dq, ds, pipeline.tile(step))",
    replacement: "startMatmul<T>(dq, ds, pipeline.tile(step) + kStepTileBytes)",
  },
  {
    name: "backward: no fence before Pᵀ dO",
    file: HOPPER_BACKWARD_FILE,
    original: `packRows<T>(weights, s);\n      ${FENCE_STATEMENT}`,
    replacement: "packRows<T>(weights, s);",
  },
  {
    name: "backward: sums that the compiler may use too early",
    file: HOPPER_BACKWARD_FILE,
    original: "waitWgmma<0>(s, dk, dv);",
    replacement: "waitWgmma<0>(s, dk);",
  },
];
