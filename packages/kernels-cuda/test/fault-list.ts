/** A mistake in the kernels: `old` in the file becomes `wrong`, at its `nth` occurrence. */
export interface Fault {
  readonly name: string;
  readonly file: string;
  readonly old: string;
  readonly wrong: string;
  /** From 0, the default. */
  readonly nth?: number;
}

const TILE = "tile.cuh";
const ONLINE = "online_softmax.cuh";
const FORWARD = "attend_mma.cuh";
const GRADIENTS = "gradients.cuh";
const BACKWARD = "attend_backward_mma.cuh";
const VISIBLE = "visible.h";
const WALK = "tile_iterator.cuh";
const SYNC = "syncBlock();";
const WAIT = "waitCopies<0>();";

/** In the kernels for every GPU. The first ones are of one kind each. */
export const faults: readonly Fault[] = [
  { name: "fragments swapped", file: TILE, old: "b[0], b[1]);", wrong: "b[0], b[2]);" },
  { name: "no barrier before values are read", file: FORWARD, old: SYNC, wrong: ";", nth: 1 },
  { name: "hidden keys end one late", file: ONLINE, old: "n * 8 + e >= end", wrong: "n * 8 + e > end" },
  {
    name: "backward: one stage for two",
    file: BACKWARD,
    old: "(step & 1) * 2 * kTileBytes<kRows",
    wrong: "0 * kTileBytes<kRows",
  },
  { name: "values not transposed", file: TILE, old: "loadMatrixTransposed(b,", wrong: "loadMatrix(b," },
  { name: "one reader without the permutation", file: TILE, old: "chunk0 + n + (lane >> 4))", wrong: "chunk0 + n)" },
  { name: "no barrier before keys are read", file: FORWARD, old: SYNC, wrong: ";" },
  { name: "no wait for keys", file: FORWARD, old: WAIT, wrong: "" },
  { name: "no wait for values", file: FORWARD, old: WAIT, wrong: "", nth: 1 },
  { name: "wait for all but one", file: FORWARD, old: WAIT, wrong: "waitCopies<1>();", nth: 1 },
  { name: "barrier in one lane", file: FORWARD, old: SYNC, wrong: "if (lane == 0) syncBlock();" },
  { name: "masked a tile late", file: WALK, old: "key0 + SIZE > fullEnd", wrong: "key0 > fullEnd" },
  { name: "last tile left out", file: WALK, old: "if (key0 < end) return", wrong: "if (key0 + SIZE < end) return" },
  { name: "next part left out", file: WALK, old: "part++;\n    seek();", wrong: "part = lastPart;" },
  { name: "sum seeded in four lanes", file: ONLINE, old: "(lane & 3) == 0 ? 1.f : 0.f", wrong: "1.f" },
  { name: "−∞ − −∞", file: ONLINE, old: "newMax == -infinity() ? 0.f : newMax", wrong: "newMax" },
  { name: "wrong head of keys", file: FORWARD, old: "headK = head / p.group", wrong: "headK = head % p.group" },
  { name: "backward: no barrier, by keys", file: BACKWARD, old: SYNC, wrong: ";" },
  { name: "backward: no barrier, by queries", file: BACKWARD, old: SYNC, wrong: ";", nth: 1 },
  { name: "backward: no wait, by queries", file: BACKWARD, old: WAIT, wrong: "", nth: 1 },
  {
    name: "backward: hidden rows begin early",
    file: GRADIENTS,
    old: "n * 8 + e < begin",
    wrong: "n * 8 + e + 1 < begin",
  },
  { name: "backward: lse in one stage", file: BACKWARD, old: "(step & 1) * RowStatistics::kBytes", wrong: "0" },
  { name: "first row not beyond", file: VISIBLE, old: "distance / edge.slope) + 1", wrong: "distance / edge.slope)" },
];

const PANELS = "hopper_tile.cuh";
const HOPPER = "attend_hopper.cuh";
const SHAPES = "hopper.h";
const HOPPER_BACKWARD = "attend_backward_hopper.cuh";
const FENCE = "fenceWgmma();";

/** In Hopper's kernels. The first ones are of one kind each. */
export const hopperFaults: readonly Fault[] = [
  {
    name: "strides of values swapped",
    file: PANELS,
    old: "K * 16 * kSwizzleRowBytes, kSwizzleAtomBytes)",
    wrong: "kSwizzleAtomBytes, 16)",
  },
  { name: "keys not waited for", file: HOPPER, old: "keys.consumerWait(step);", wrong: "" },
  { name: "wrong parity of what is free", file: PANELS, old: "(step / kStages & 1) ^ 1", wrong: "step / kStages & 1" },
  { name: "no fence before scores", file: HOPPER, old: FENCE, wrong: "", nth: 1 },
  {
    name: "every key one further",
    file: WALK,
    old: "parts.part[part].key + key0",
    wrong: "parts.part[part].key + key0 + 1",
  },
  {
    name: "stride of keys",
    file: PANELS,
    old: "+ inside, 16, kSwizzleAtomBytes);\n    wgmma",
    wrong: "+ inside, 16, 512);\n    wgmma",
  },
  {
    name: "values not transposed",
    file: PANELS,
    old: "wgmmaRegisters<T, N, true>",
    wrong: "wgmmaRegisters<T, N, false>",
  },
  {
    name: "half a step in values",
    file: PANELS,
    old: "b + k * 2 * kSwizzleAtomBytes",
    wrong: "b + k * kSwizzleAtomBytes",
  },
  {
    name: "all warpgroups take the same rows",
    file: PANELS,
    old: "(panel * ROWS_A + rowA)",
    wrong: "(panel * ROWS_A)",
  },
  { name: "scores added to the last ones", file: PANELS, old: "left, right, k > 0", wrong: "left, right, true" },
  {
    name: "left operand's rows swapped",
    file: PANELS,
    old: "pack2<T>(s[k][0], s[k][1])",
    wrong: "pack2<T>(s[k][2], s[k][3])",
  },
  {
    name: "parity of what is full stuck",
    file: PANELS,
    old: "step / kStages & 1); }\n  DEVICE void consumerRelease",
    wrong: "0); }\n  DEVICE void consumerRelease",
  },
  { name: "barriers unknown to TMA", file: PANELS, old: "fenceBarriers();", wrong: "" },
  { name: "no barrier after barriers are made", file: PANELS, old: "  }\n  syncBlock();", wrong: "  }" },
  { name: "queries not waited for", file: HOPPER, old: "awaitPhase(qFull, 0);", wrong: "" },
  { name: "values not waited for", file: HOPPER, old: "values.consumerWait(step - 1);", wrong: "" },
  { name: "last values not waited for", file: HOPPER, old: "values.consumerWait(step);", wrong: "" },
  { name: "keys loaded where others are in use", file: HOPPER, old: "keys.producerAcquire(step);", wrong: "" },
  { name: "values loaded where others are in use", file: HOPPER, old: "values.producerAcquire(step);", wrong: "" },
  {
    name: "half of the bytes expected",
    file: HOPPER,
    old: "keys.fullBarrier(step), kPanelsBytes<kKeys, D>",
    wrong: "keys.fullBarrier(step), kPanelsBytes<kKeys, D> / 2",
  },
  {
    name: "one warpgroup frees for all",
    file: HOPPER,
    old: "keys.init(1, 4 * Forward::kGroups)",
    wrong: "keys.init(1, 4)",
  },
  {
    name: "keys freed before they are used up",
    file: HOPPER,
    old: "order.arrive();",
    wrong: "order.arrive(); keys.consumerRelease(step);",
  },
  { name: "scores used before they are there", file: HOPPER, old: "waitWgmma<1>(s);", wrong: "" },
  { name: "wait for one group too few", file: HOPPER, old: "waitWgmma<1>(s);", wrong: "waitWgmma<2>(s);" },
  { name: "sums scaled before they are there", file: HOPPER, old: "waitWgmma<0>(acc);", wrong: "" },
  { name: "no fence before values", file: HOPPER, old: `${FENCE}\n    startMatmul`, wrong: "startMatmul" },
  { name: "scores never committed", file: HOPPER, old: "commitWgmma();", wrong: "", nth: 1 },
  { name: "turn not passed", file: HOPPER, old: "order.arrive();", wrong: "" },
  {
    name: "tiles off the permutation's grid",
    file: HOPPER,
    old: "q = sharedBase(), stages",
    wrong: "q = sharedBase() + 64, stages",
  },
  {
    name: "tiles beyond what was asked for",
    file: HOPPER,
    old: "stages = q + kPanelsBytes<kRows, D>",
    wrong: "stages = q + 2 * kPanelsBytes<kRows, D>",
  },
  { name: "more registers than there are", file: SHAPES, old: "/ groups / 8 * 8", wrong: "/ groups / 8 * 8 + 8" },
  {
    name: "more registers than the block started with, though no more than a multiprocessor has",
    file: HOPPER_BACKWARD,
    old: "releaseRegisters<Keys::kShape.producerRegisters()>",
    wrong: "releaseRegisters<32>",
  },
  {
    name: "registers taken that nobody gave",
    file: HOPPER,
    old: "releaseRegisters<Forward::kShape.producerRegisters()>();",
    wrong: "",
  },
  {
    name: "wrong head of keys",
    file: HOPPER,
    old: "ownRange.head / p.base.group",
    wrong: "ownRange.head % p.base.group",
  },
  { name: "masked a tile late", file: WALK, old: "key0 + SIZE > fullEnd", wrong: "key0 > fullEnd" },
  {
    name: "backward: lse in one stage",
    file: HOPPER_BACKWARD,
    old: "statistics + step % kStages * RowStatistics::kBytes",
    wrong: "statistics",
  },
  {
    name: "backward: lse not counted in",
    file: HOPPER_BACKWARD,
    old: "pipeline.init(1 + 3 * 32,",
    wrong: "pipeline.init(1,",
  },
  {
    name: "backward: lse over what is in use",
    file: HOPPER_BACKWARD,
    old: "pipeline.producerAcquire(step);\n      for",
    wrong: "for",
  },
  {
    name: "backward: q and dOut exchanged",
    file: HOPPER_BACKWARD,
    old: "startMatmul<T>(dk, ds, q)",
    wrong: "startMatmul<T>(dk, ds, g)",
  },
  { name: "backward: dP not waited for, by keys", file: HOPPER_BACKWARD, old: "waitWgmma<1>(dp);", wrong: "" },
  {
    name: "backward: dP not waited for, by queries",
    file: HOPPER_BACKWARD,
    old: "waitWgmma<0>(dp);",
    wrong: "waitWgmma<1>(dp);",
  },
  {
    name: "backward: freed before it is used up",
    file: HOPPER_BACKWARD,
    old: "waitWgmma<0>(s, dk, dv);\n      pipeline.consumerRelease(step);",
    wrong: "pipeline.consumerRelease(step);\n      waitWgmma<0>(s, dk, dv);",
  },
  {
    name: "backward: freed early, by queries",
    file: HOPPER_BACKWARD,
    old: "waitWgmma<0>(s, dq);\n      pipeline.consumerRelease(step);",
    wrong: "pipeline.consumerRelease(step);\n      waitWgmma<0>(s, dq);",
  },
  {
    name: "backward: next scores not waited for",
    file: HOPPER_BACKWARD,
    old: "pipeline.consumerWait(next);",
    wrong: "",
  },
  {
    name: "backward: no fence before dS K",
    file: HOPPER_BACKWARD,
    old: `packRows<T>(ds, s);\n      ${FENCE}\n      startMatmul<T>(dq`,
    wrong: "packRows<T>(ds, s);\n      startMatmul<T>(dq",
  },
  {
    name: "backward: k and v exchanged",
    file: HOPPER_BACKWARD,
    old: "startMatmul<T>(dq, ds, pipeline.tile(step))",
    wrong: "startMatmul<T>(dq, ds, pipeline.tile(step) + kTile)",
  },
  {
    name: "backward: no fence before Pᵀ dO",
    file: HOPPER_BACKWARD,
    old: `packRows<T>(weights, s);\n      ${FENCE}`,
    wrong: "packRows<T>(weights, s);",
  },
  {
    name: "backward: sums that the compiler may use too early",
    file: HOPPER_BACKWARD,
    old: "waitWgmma<0>(s, dk, dv);",
    wrong: "waitWgmma<0>(s, dk);",
  },
];
