// The kernels of a device, as data: one row for each, its parameters in the order of a call. Derived from the rows:
//
// - the TypeScript interface `Kernels` (kernels.ts), which shows these comments in an editor
// - what a kernel reads and mutates (operands.ts): the symbolic device records by it
// - how a call's arguments reach native code (packages/runtime/src/kernel-arguments.ts), and how that code reads them
//   (packages/runtime/include/mosaic/kernel_arguments.h, written by scripts/kernel-headers.mjs)
//
// Plain literals, so that the types follow from the data; kernels.ts has the types of fields, and checks them. Letters of
// shapes: B batch, H heads, Hkv KV heads, Sq and Sk rows of queries and of keys, D and Dv size of a head and of its
// values, E elements of a row, V rows of a table, C classes; ".." any leading axes, the same in the whole row. Operands
// without a shape broadcast to the output. Operands without a dtype take any.

/** Values of enumerations. Native code has them in this order. Their types carry the comments. */
export const kernelEnumerations = {
  BinaryOp: ["add", "sub", "mul", "div", "max"],
  UnaryOp: ["neg", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "gelu", "geluTanh", "silu", "square"],
  ReduceKind: ["sum", "max"],
  RandomKind: ["uniform", "normal"],
  AdamKind: ["adamW", "scheduleFree"],
} as const;

/**
 * Parts of the contract that a device need not have, because they came later: `Device.features` lists those that it has. A
 * call that needs another is rejected; see `checkFeatures`. `dropout` is that of attention's weights; the kernel `dropout` below, which
 * every device has, is that of elements. `valueHeadSize`: a head size of v that is not that of q and k.
 */
export const kernelFeatures = ["softcap", "slopes", "dropout", "sampleMasks", "valueHeadSize"] as const;

/** Fields of structured arguments, in the order in which native code reads them. Their interfaces carry the comments. */
export const kernelStructures = {
  AttentionState: [
    { name: "out", tensor: "update", shape: "[B,H,Sq,Dv]", dtype: "float32" },
    { name: "lse", tensor: "update", shape: "[B,H,Sq]", dtype: "float32" },
  ],
  KvBlock: [
    { name: "k", tensor: "read", shape: "[B,Hkv,Sk,D]" },
    { name: "v", tensor: "read", shape: "[B,Hkv,Sk,Dv]" },
  ],
  SavedRows: [
    { name: "dOut", tensor: "read", shape: "[B,H,Sq,Dv]" },
    { name: "lse", tensor: "read", shape: "[B,H,Sq]", dtype: "float32" },
    { name: "delta", tensor: "read", shape: "[B,H,Sq]", dtype: "float32" },
  ],
  QkvGrads: [
    { name: "dq", tensor: "update", shape: "[B,H,Sq,D]", dtype: "float32" },
    { name: "dk", tensor: "update", shape: "[B,Hkv,Sk,D]", dtype: "float32" },
    { name: "dv", tensor: "update", shape: "[B,Hkv,Sk,Dv]", dtype: "float32" },
  ],
  Tile: [
    { name: "q", list: "spans" },
    { name: "k", list: "spans" },
    { name: "mask", list: "slices" },
    { name: "scale", scalar: "float32" },
    { name: "modifiers", struct: "AttentionModifiers", optional: true },
  ],
  AttentionModifiers: [
    { name: "softcap", scalar: "float32", optional: true, feature: "softcap" },
    { name: "slopes", tensor: "read", shape: "[H]", dtype: "float32", optional: true, feature: "slopes" },
    { name: "dropout", struct: "AttentionDropout", optional: true, feature: "dropout" },
    { name: "sampleMasks", list: "slicesBySample", optional: true, feature: "sampleMasks" },
    { name: "origin", struct: "HeadOrigin", optional: true },
  ],
  AttentionDropout: [
    { name: "probability", scalar: "float32" },
    { name: "seed", scalar: "uint64" },
    { name: "stream", scalar: "uint64" },
    { name: "batchOffset", scalar: "int64" },
  ],
  HeadOrigin: [
    { name: "batch", scalar: "int64" },
    { name: "head", scalar: "int64" },
  ],
  LinearEpilogue: [
    { name: "bias", tensor: "read", shape: "[N]", optional: true },
    { name: "activation", enum: "UnaryOp", optional: true },
    { name: "gate", tensor: "read", shape: "[..,M,N]", optional: true },
    { name: "preActivation", tensor: "write", shape: "[..,M,N]", optional: true },
  ],
  NormParameters: [
    { name: "weight", tensor: "read", shape: "[E]", optional: true },
    { name: "bias", tensor: "read", shape: "[E]", optional: true },
    { name: "epsilon", scalar: "float32" },
  ],
  NormStats: [
    { name: "mean", tensor: "write", shape: "[..,1]", dtype: "float32", optional: true },
    { name: "rstd", tensor: "write", shape: "[..,1]", dtype: "float32" },
  ],
  NormGrads: [
    { name: "dx", tensor: "write", shape: "[..,E]" },
    { name: "dWeight", tensor: "update", shape: "[E]", dtype: "float32", optional: true },
    { name: "dBias", tensor: "update", shape: "[E]", dtype: "float32", optional: true },
  ],
  RotaryAngles: [
    { name: "cos", tensor: "read", shape: "[S,D/2]", dtype: "float32" },
    { name: "sin", tensor: "read", shape: "[S,D/2]", dtype: "float32" },
    { name: "interleaved", scalar: "boolean" },
    { name: "inverse", scalar: "boolean" },
  ],
  RandomSpec: [
    { name: "kind", enum: "RandomKind" },
    { name: "a", scalar: "float32", names: { uniform: "low", normal: "mean" } },
    { name: "b", scalar: "float32", names: { uniform: "high", normal: "std" } },
    { name: "seed", scalar: "uint64" },
    { name: "stream", scalar: "uint64" },
  ],
  DropoutSpec: [
    { name: "probability", scalar: "float32" },
    { name: "seed", scalar: "uint64" },
    { name: "stream", scalar: "uint64" },
    { name: "offset", scalar: "int64" },
    { name: "strides", list: "strides" },
  ],
  CrossEntropyRows: [
    { name: "loss", tensor: "write", shape: "[..]", dtype: "float32" },
    { name: "lse", tensor: "write", shape: "[..]", dtype: "float32" },
    { name: "counted", tensor: "write", shape: "[..]", dtype: "float32" },
  ],
  CrossEntropySaved: [
    { name: "x", tensor: "read", shape: "[..,C]" },
    { name: "target", tensor: "read", shape: "[..]" },
    { name: "lse", tensor: "read", shape: "[..]", dtype: "float32" },
  ],
  CrossEntropySpec: [
    { name: "smoothing", scalar: "float32" },
    { name: "ignored", scalar: "float32" },
  ],
  AdamState: [
    { name: "parameter", tensor: "update" },
    { name: "first", tensor: "update", dtype: "float32" },
    { name: "second", tensor: "update", dtype: "float32" },
  ],
  AdamStep: [
    { name: "kind", enum: "AdamKind" },
    { name: "rate", scalar: "float64" },
    { name: "beta1", scalar: "float64" },
    { name: "beta2", scalar: "float64" },
    { name: "epsilon", scalar: "float64" },
    { name: "decay", scalar: "float64" },
    { name: "correction1", scalar: "float64" },
    { name: "correction2", scalar: "float64" },
    { name: "mix", scalar: "float64" },
  ],
} as const;

/** Every kernel, with its parameters. Outputs come first. */
export const kernelSchema = {
  /**
   * Folds one block of keys into `state`: q [B,H,Sq,D], k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv], out [B,H,Sq,Dv] and lse [B,H,Sq]
   * float32. Query head h reads KV head floor(h·Hkv/H). Rows that see nothing stay as they are.
   * Online softmax: Milakov and Gimelshein 2018; blocks: FlashAttention-2 (Dao 2023), algorithm 1.
   */
  attend: [
    { name: "state", struct: "AttentionState" },
    { name: "q", tensor: "read", shape: "[B,H,Sq,D]" },
    { name: "kv", struct: "KvBlock" },
    { name: "tile", struct: "Tile" },
  ],
  /** Adds to dq, dk, dv (float32) what this block of keys contributes; uses the global lse and delta. FlashAttention-2, algorithm 2. */
  attendBackward: [
    { name: "grads", struct: "QkvGrads" },
    { name: "q", tensor: "read", shape: "[B,H,Sq,D]" },
    { name: "saved", struct: "SavedRows" },
    { name: "kv", struct: "KvBlock" },
    { name: "tile", struct: "Tile" },
  ],
  /** into ← the state over the union of both (disjoint) key sets. */
  merge: [
    { name: "into", struct: "AttentionState" },
    { name: "from", struct: "AttentionState", access: "read" },
  ],
  /** out[…] ← Σ over the last axis of a·b, float32: delta = rowsum(dOut · out). */
  rowDot: [
    { name: "out", tensor: "write", shape: "[..]", dtype: "float32" },
    { name: "a", tensor: "read", shape: "[..,E]" },
    { name: "b", tensor: "read", shape: "[..,E]" },
  ],
  /** out ← value. */
  fill: [
    { name: "out", tensor: "write" },
    { name: "value", scalar: "float32" },
  ],
  /** out ← x, converting dtype; x may broadcast. */
  copy: [
    { name: "out", tensor: "write" },
    { name: "x", tensor: "read" },
  ],
  /** out ← a op b, with broadcasting; out may be a or b. */
  binary: [
    { name: "op", enum: "BinaryOp" },
    { name: "out", tensor: "write" },
    { name: "a", tensor: "read" },
    { name: "b", tensor: "read" },
  ],
  /** out ← x op value. */
  scalar: [
    { name: "op", enum: "BinaryOp" },
    { name: "out", tensor: "write" },
    { name: "x", tensor: "read" },
    { name: "value", scalar: "float32" },
  ],
  /** out ← op(x). */
  unary: [
    { name: "op", enum: "UnaryOp" },
    { name: "out", tensor: "write" },
    { name: "x", tensor: "read" },
  ],
  /** dx ← dy · op'(x). That of relu is a selection, also of numbers that are not finite: 0 where x ≤ 0, else dy. */
  unaryBackward: [
    { name: "op", enum: "UnaryOp" },
    { name: "dx", tensor: "write" },
    { name: "x", tensor: "read" },
    { name: "dy", tensor: "read" },
  ],
  /** out ← activation(gate) · x, rounded once. */
  gate: [
    { name: "activation", enum: "UnaryOp", optional: true },
    { name: "out", tensor: "write" },
    { name: "gate", tensor: "read" },
    { name: "x", tensor: "read" },
  ],
  /** Reduces every axis on which out has length 1 and x has not. */
  reduce: [
    { name: "kind", enum: "ReduceKind" },
    { name: "out", tensor: "write" },
    { name: "x", tensor: "read" },
  ],
  /** out [..,M,N] ← a [..,M,K] · b [..,K,N] (+ out if `accumulate`); leading axes broadcast; transposes are strides. */
  matmul: [
    { name: "out", tensor: "write", updatedIf: "accumulate", shape: "[..,M,N]" },
    { name: "a", tensor: "read", shape: "[..,M,K]" },
    { name: "b", tensor: "read", shape: "[..,K,N]" },
    { name: "accumulate", scalar: "boolean" },
  ],
  /**
   * out [..,M,N] ← activation(sums), sums = a [..,M,K] · b [..,K,N] + bias [N]; with a gate [..,M,N], activation(gate) · sums;
   * and, where it is given, preActivation ← sums. Leading axes as matmul's. A device may round sums to the dtype of `out`.
   */
  linear: [
    { name: "out", tensor: "write", shape: "[..,M,N]" },
    { name: "a", tensor: "read", shape: "[..,M,K]" },
    { name: "b", tensor: "read", shape: "[..,K,N]" },
    { name: "epilogue", struct: "LinearEpilogue" },
  ],
  /** Over the last axis; a row of −Infinity gives 0. */
  softmax: [
    { name: "out", tensor: "write", shape: "[..,E]" },
    { name: "x", tensor: "read", shape: "[..,E]" },
  ],
  /** dx ← out · (dOut − Σ over the last axis of out · dOut). */
  softmaxBackward: [
    { name: "dx", tensor: "write", shape: "[..,E]" },
    { name: "out", tensor: "read", shape: "[..,E]" },
    { name: "dOut", tensor: "read", shape: "[..,E]" },
  ],
  /** Over the last axis; weight and bias [E]; saves mean and rstd [..,1] float32 for the backward. */
  layerNorm: [
    { name: "out", tensor: "write", shape: "[..,E]" },
    { name: "x", tensor: "read", shape: "[..,E]" },
    { name: "norm", struct: "NormParameters" },
    { name: "stats", struct: "NormStats" },
  ],
  /** dx is written; dWeight and dBias (float32, [E]) are added to. */
  layerNormBackward: [
    { name: "grads", struct: "NormGrads" },
    { name: "x", tensor: "read", shape: "[..,E]" },
    { name: "dOut", tensor: "read", shape: "[..,E]" },
    { name: "weight", tensor: "read", shape: "[E]", optional: true },
    { name: "stats", struct: "NormStats", access: "read" },
  ],
  /** `layerNorm` without a mean, and so without `stats.mean`. */
  rmsNorm: [
    { name: "out", tensor: "write", shape: "[..,E]" },
    { name: "x", tensor: "read", shape: "[..,E]" },
    { name: "norm", struct: "NormParameters" },
    { name: "stats", struct: "NormStats" },
  ],
  /** As `layerNormBackward`. */
  rmsNormBackward: [
    { name: "grads", struct: "NormGrads" },
    { name: "x", tensor: "read", shape: "[..,E]" },
    { name: "dOut", tensor: "read", shape: "[..,E]" },
    { name: "weight", tensor: "read", shape: "[E]", optional: true },
    { name: "stats", struct: "NormStats", access: "read" },
  ],
  /**
   * out ← each pair of features (a, b) of x turned, (a cos − b sin, b cos + a sin), or turned back. A pair is features i and i + D/2, or
   * 2i and 2i + 1. Su et al. 2021.
   */
  rotary: [
    { name: "out", tensor: "write", shape: "[..,S,D]" },
    { name: "x", tensor: "read", shape: "[..,S,D]" },
    { name: "angles", struct: "RotaryAngles" },
  ],
  /** Philox4x32-10 (Salmon et al. 2011): element i depends on (seed, stream, i) alone, on any device and any mesh. */
  random: [
    { name: "out", tensor: "write" },
    { name: "spec", struct: "RandomSpec" },
  ],
  /** out ← x / (1 − probability), or 0 where the number at the element's global index is below `probability`. */
  dropout: [
    { name: "out", tensor: "write" },
    { name: "x", tensor: "read" },
    { name: "spec", struct: "DropoutSpec" },
  ],
  /**
   * out [..,E] ← the rows of table [V,E] that index [..] names: integers from 0 to V − 1, in any dtype. Another
   * number fails the stream with a DeviceError.
   */
  gatherRows: [
    { name: "out", tensor: "write", shape: "[..,E]" },
    { name: "table", tensor: "read", shape: "[V,E]" },
    { name: "index", tensor: "read", shape: "[..]" },
  ],
  /** into [V,E] (float32) += the rows x [..,E], each where index [..] states, in their order. */
  scatterAddRows: [
    { name: "into", tensor: "update", shape: "[V,E]", dtype: "float32" },
    { name: "x", tensor: "read", shape: "[..,E]" },
    { name: "index", tensor: "read", shape: "[..]" },
  ],
  /**
   * Of each row of logits x [..,C] and its class target [..]: the loss, the natural logarithm lse of Σ exp, and whether it
   * counts (1) or target is `ignored` (0, with loss 0). All float32 [..]. A target that is no class fails the stream.
   */
  crossEntropy: [
    { name: "rows", struct: "CrossEntropyRows" },
    { name: "x", tensor: "read", shape: "[..,C]" },
    { name: "target", tensor: "read", shape: "[..]" },
    { name: "spec", struct: "CrossEntropySpec" },
  ],
  /** dx [..,C] ← dLoss [..] · (softmax(x) − the target distribution); 0 for rows that do not count. */
  crossEntropyBackward: [
    { name: "dx", tensor: "write", shape: "[..,C]" },
    { name: "saved", struct: "CrossEntropySaved" },
    { name: "dLoss", tensor: "read", shape: "[..]" },
    { name: "spec", struct: "CrossEntropySpec" },
  ],
  /** One step of an optimizer on one parameter, in place; all have one shape, `first` and `second` are float32. */
  adam: [
    { name: "state", struct: "AdamState" },
    { name: "gradient", tensor: "read" },
    { name: "step", struct: "AdamStep" },
  ],
} as const;
