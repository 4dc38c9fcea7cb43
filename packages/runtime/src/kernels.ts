import {
  type AdamState,
  type AdamStep,
  type AttentionState,
  type BinaryOp,
  type CrossEntropyRows,
  type CrossEntropySaved,
  type CrossEntropySpec,
  DTypeError,
  type DropoutSpec,
  type Kernels,
  type KvBlock,
  type NormGrads,
  type NormParameters,
  type NormStats,
  type QkvGrads,
  type RandomSpec,
  type ReduceKind,
  type SavedRows,
  type Tensor,
  type Tile,
  type UnaryOp,
} from "@mosaic/core";
import type { Scratch } from "./scratch.ts";

/** A call of one kernel: its operands are in the scratch array. */
export type KernelCall = () => void;

/** The kernels that an addon exports, by name. */
export type KernelCalls = Readonly<Record<keyof Kernels, KernelCall>>;

/** A native device, as its kernels use it. */
export interface KernelHost {
  readonly native: KernelCalls;
  /** The scratch array, ready for the arguments of a call. */
  begin(where: string): Scratch;
  /** Makes a call that submits work; throws the stream's failure if it has failed. */
  launch(call: KernelCall): void;
}

// Codes of the enums in native code, in order.
const binaryOps = { add: 0, sub: 1, mul: 2, div: 3, max: 4 } as const satisfies Record<BinaryOp, number>;
const unaryOps = {
  neg: 0,
  exp: 1,
  log: 2,
  sqrt: 3,
  rsqrt: 4,
  tanh: 5,
  sigmoid: 6,
  relu: 7,
  gelu: 8,
  square: 9,
} as const satisfies Record<UnaryOp, number>;
const reduceKinds = { sum: 0, max: 1 } as const satisfies Record<ReduceKind, number>;
const randomKinds = { uniform: 0, normal: 1 } as const;
const adamKinds = { adamW: 0, scheduleFree: 1 } as const satisfies Record<AdamStep["kind"], number>;

/** What attention sums is float32; its kernels look no further, and would write past the end of 16 bits an element. */
function checkSums(where: string, ...sums: readonly Tensor[]): void {
  for (const { dtype } of sums) {
    if (dtype === "float32") continue;
    throw new DTypeError({
      where,
      expected: "float32 for what is summed, and its statistics",
      received: dtype,
      remedy: "round once, when all is summed",
    });
  }
}

/** The kernels of one device. Each call writes its operands into the scratch array and submits one native work. */
export class NativeKernels implements Kernels {
  readonly #device: KernelHost;

  constructor(device: KernelHost) {
    this.#device = device;
  }

  attend(state: AttentionState, q: Tensor, kv: KvBlock, tile: Tile): void {
    checkSums("attend", state.out, state.lse);
    const scratch = this.#device.begin("attend");
    scratch.view(state.out).view(state.lse).view(q).view(kv.k).view(kv.v);
    scratch.spans(tile.q).spans(tile.k).slices(tile.mask).number(tile.scale);
    this.#device.launch(this.#device.native.attend);
  }

  attendBackward(grads: QkvGrads, q: Tensor, saved: SavedRows, kv: KvBlock, tile: Tile): void {
    checkSums("attendBackward", grads.dq, grads.dk, grads.dv, saved.lse, saved.delta);
    const scratch = this.#device.begin("attendBackward");
    scratch.view(grads.dq).view(grads.dk).view(grads.dv).view(q).view(kv.k).view(kv.v);
    scratch.view(saved.dOut).view(saved.lse).view(saved.delta);
    scratch.spans(tile.q).spans(tile.k).slices(tile.mask).number(tile.scale);
    this.#device.launch(this.#device.native.attendBackward);
  }

  merge(into: AttentionState, from: AttentionState): void {
    checkSums("merge", into.out, into.lse, from.out, from.lse);
    this.#device.begin("merge").view(into.out).view(into.lse).view(from.out).view(from.lse);
    this.#device.launch(this.#device.native.merge);
  }

  rowDot(out: Tensor, a: Tensor, b: Tensor): void {
    this.#device.begin("rowDot").view(out).view(a).view(b);
    this.#device.launch(this.#device.native.rowDot);
  }

  fill(out: Tensor, value: number): void {
    this.#device.begin("fill").view(out).number(value);
    this.#device.launch(this.#device.native.fill);
  }

  copy(out: Tensor, x: Tensor): void {
    this.#device.begin("copy").view(out).view(x);
    this.#device.launch(this.#device.native.copy);
  }

  binary(op: BinaryOp, out: Tensor, a: Tensor, b: Tensor): void {
    this.#device.begin(op).number(binaryOps[op]).view(out).view(a).view(b);
    this.#device.launch(this.#device.native.binary);
  }

  scalar(op: BinaryOp, out: Tensor, x: Tensor, value: number): void {
    this.#device.begin(op).number(binaryOps[op]).view(out).view(x).number(value);
    this.#device.launch(this.#device.native.scalar);
  }

  unary(op: UnaryOp, out: Tensor, x: Tensor): void {
    this.#device.begin(op).number(unaryOps[op]).view(out).view(x);
    this.#device.launch(this.#device.native.unary);
  }

  /** gelu is the exact form x·Φ(x), as in PyTorch's default. relu'(0) is 0. */
  unaryBackward(op: UnaryOp, dx: Tensor, x: Tensor, dy: Tensor): void {
    this.#device.begin(op).number(unaryOps[op]).view(dx).view(x).view(dy);
    this.#device.launch(this.#device.native.unaryBackward);
  }

  reduce(kind: ReduceKind, out: Tensor, x: Tensor): void {
    this.#device.begin(kind).number(reduceKinds[kind]).view(out).view(x);
    this.#device.launch(this.#device.native.reduce);
  }

  matmul(out: Tensor, a: Tensor, b: Tensor, accumulate: boolean): void {
    this.#device
      .begin("matmul")
      .view(out)
      .view(a)
      .view(b)
      .number(accumulate ? 1 : 0);
    this.#device.launch(this.#device.native.matmul);
  }

  softmax(out: Tensor, x: Tensor): void {
    this.#device.begin("softmax").view(out).view(x);
    this.#device.launch(this.#device.native.softmax);
  }

  softmaxBackward(dx: Tensor, out: Tensor, dOut: Tensor): void {
    this.#device.begin("softmaxBackward").view(dx).view(out).view(dOut);
    this.#device.launch(this.#device.native.softmaxBackward);
  }

  layerNorm(out: Tensor, x: Tensor, norm: NormParameters, stats: NormStats): void {
    this.#norm("layerNorm", out, x, { ...norm, ...stats });
  }

  layerNormBackward(grads: NormGrads, x: Tensor, dOut: Tensor, weight: Tensor | null, stats: NormStats): void {
    this.#normBackward("layerNormBackward", grads, { x, dOut, weight, ...stats });
  }

  rmsNorm(out: Tensor, x: Tensor, norm: NormParameters, stats: NormStats): void {
    this.#norm("rmsNorm", out, x, { ...norm, rstd: stats.rstd, mean: null });
  }

  rmsNormBackward(grads: NormGrads, x: Tensor, dOut: Tensor, weight: Tensor | null, stats: NormStats): void {
    this.#normBackward("rmsNormBackward", grads, { x, dOut, weight, rstd: stats.rstd, mean: null });
  }

  random(out: Tensor, spec: RandomSpec): void {
    const [a, b] = spec.kind === "uniform" ? [spec.low, spec.high] : [spec.mean, spec.std];
    const scratch = this.#device.begin("random").view(out).number(randomKinds[spec.kind]).number(a).number(b);
    scratch.number(spec.seed).number(spec.stream);
    this.#device.launch(this.#device.native.random);
  }

  dropout(out: Tensor, x: Tensor, spec: DropoutSpec): void {
    const scratch = this.#device.begin("dropout").view(out).view(x).number(spec.probability);
    scratch.number(spec.seed).number(spec.stream).number(spec.offset);
    for (const stride of spec.strides) scratch.number(stride);
    this.#device.launch(this.#device.native.dropout);
  }

  gatherRows(out: Tensor, table: Tensor, index: Tensor): void {
    this.#device.begin("gatherRows").view(out).view(table).view(index);
    this.#device.launch(this.#device.native.gatherRows);
  }

  scatterAddRows(into: Tensor, x: Tensor, index: Tensor): void {
    this.#device.begin("scatterAddRows").view(into).view(x).view(index);
    this.#device.launch(this.#device.native.scatterAddRows);
  }

  crossEntropy(rows: CrossEntropyRows, x: Tensor, target: Tensor, spec: CrossEntropySpec): void {
    const scratch = this.#device.begin("crossEntropy").view(rows.loss).view(rows.lse).view(rows.counted);
    scratch.view(x).view(target).number(spec.smoothing).number(spec.ignored);
    this.#device.launch(this.#device.native.crossEntropy);
  }

  crossEntropyBackward(dx: Tensor, saved: CrossEntropySaved, dLoss: Tensor, spec: CrossEntropySpec): void {
    const scratch = this.#device.begin("crossEntropyBackward").view(dx).view(saved.x).view(saved.target);
    scratch.view(saved.lse).view(dLoss).number(spec.smoothing).number(spec.ignored);
    this.#device.launch(this.#device.native.crossEntropyBackward);
  }

  adam(state: AdamState, gradient: Tensor, step: AdamStep): void {
    const scratch = this.#device.begin(step.kind).view(state.parameter).view(state.first).view(state.second);
    scratch.view(gradient).number(adamKinds[step.kind]).number(step.rate).number(step.beta1).number(step.beta2);
    scratch.number(step.epsilon).number(step.decay).number(step.correction1).number(step.correction2).number(step.mix);
    this.#device.launch(this.#device.native.adam);
  }

  #norm(name: "layerNorm" | "rmsNorm", out: Tensor, x: Tensor, rest: NormParameters & NormStats): void {
    const scratch = this.#device.begin(name).view(out).view(x).optional(rest.weight).optional(rest.bias);
    scratch.optional(rest.mean).view(rest.rstd).number(rest.epsilon);
    this.#device.launch(this.#device.native[name]);
  }

  #normBackward(
    name: "layerNormBackward" | "rmsNormBackward",
    grads: NormGrads,
    saved: NormStats & { readonly x: Tensor; readonly dOut: Tensor; readonly weight: Tensor | null },
  ): void {
    const scratch = this.#device.begin(name).view(grads.dx).optional(grads.dWeight).optional(grads.dBias);
    scratch.view(saved.x).view(saved.dOut).optional(saved.weight).optional(saved.mean).view(saved.rstd);
    this.#device.launch(this.#device.native[name]);
  }
}
