// The arguments of every kernel, in the order in which they come, as packages/core/src/kernels/schema.ts states.
// Written by scripts/kernel-headers.mjs: edit the schema.
//
// Behind an operand stand its shape (none: it broadcasts to the output), its dtype (none: any), and whether its
// elements are read, written (all of them, unread) or updated (read and written).
#pragma once

#include <optional>
#include <vector>

#include "mosaic/kernel_enums.h"
#include "mosaic/argument_reader.h"

namespace mosaic {

struct AttentionState {
  TensorView out;  // [B,H,Sq,Dv] float32, updated
  TensorView lse;  // [B,H,Sq] float32, updated
  void read(ArgumentReader& args) { args(out, lse); }
};

struct KvBlock {
  TensorView k;  // [B,Hkv,Sk,D], read
  TensorView v;  // [B,Hkv,Sk,Dv], read
  void read(ArgumentReader& args) { args(k, v); }
};

struct AttentionDropout {
  float probability;
  uint64_t seed;
  uint64_t stream;
  int64_t batchOffset;
  void read(ArgumentReader& args) { args(probability, seed, stream, batchOffset); }
};

struct HeadOrigin {
  int64_t batch;
  int64_t head;
  void read(ArgumentReader& args) { args(batch, head); }
};

struct AttentionModifiers {
  float softcap;
  OptionalView slopes;  // [H] float32, read, may be absent
  std::optional<AttentionDropout> dropout{};
  std::vector<std::vector<Slice>> sampleMasks;
  std::optional<HeadOrigin> origin{};
  void read(ArgumentReader& args) { args(softcap, slopes, dropout, sampleMasks, origin); }
};

struct Tile {
  std::vector<Span> q;
  std::vector<Span> k;
  std::vector<Slice> mask;
  float scale;
  std::optional<AttentionModifiers> modifiers{};
  void read(ArgumentReader& args) { args(q, k, mask, scale, modifiers); }
};

struct QkvGrads {
  TensorView dq;  // [B,H,Sq,D] float32, updated
  TensorView dk;  // [B,Hkv,Sk,D] float32, updated
  TensorView dv;  // [B,Hkv,Sk,Dv] float32, updated
  void read(ArgumentReader& args) { args(dq, dk, dv); }
};

struct SavedRows {
  TensorView dOut;  // [B,H,Sq,Dv], read
  TensorView lse;  // [B,H,Sq] float32, read
  TensorView delta;  // [B,H,Sq] float32, read
  void read(ArgumentReader& args) { args(dOut, lse, delta); }
};

struct LinearEpilogue {
  OptionalView bias;  // [N], read, may be absent
  std::optional<UnaryOp> activation{};
  OptionalView gate;  // [..,M,N], read, may be absent
  OptionalView preActivation;  // [..,M,N], written, may be absent
  void read(ArgumentReader& args) { args(bias, activation, gate, preActivation); }
};

struct NormParameters {
  OptionalView weight;  // [E], read, may be absent
  OptionalView bias;  // [E], read, may be absent
  float epsilon;
  void read(ArgumentReader& args) { args(weight, bias, epsilon); }
};

struct NormStats {
  OptionalView mean;  // [..,1] float32, written, may be absent
  View rstd;  // [..,1] float32, written
  void read(ArgumentReader& args) { args(mean, rstd); }
};

struct NormGrads {
  View dx;  // [..,E], written
  OptionalView dWeight;  // [E] float32, updated, may be absent
  OptionalView dBias;  // [E] float32, updated, may be absent
  void read(ArgumentReader& args) { args(dx, dWeight, dBias); }
};

struct RotaryAngles {
  View cos;  // [S,D/2] float32, read
  View sin;  // [S,D/2] float32, read
  bool interleaved;
  bool inverse;
  void read(ArgumentReader& args) { args(cos, sin, interleaved, inverse); }
};

struct RandomSpec {
  RandomKind kind;
  float a;  // uniform: low, normal: mean
  float b;  // uniform: high, normal: std
  uint64_t seed;
  uint64_t stream;
  void read(ArgumentReader& args) { args(kind, a, b, seed, stream); }
};

struct DropoutSpec {
  float probability;
  uint64_t seed;
  uint64_t stream;
  int64_t offset;
  Strides strides;
  void read(ArgumentReader& args) { args(probability, seed, stream, offset, strides); }
};

struct CrossEntropyRows {
  View loss;  // [..] float32, written
  View lse;  // [..] float32, written
  View counted;  // [..] float32, written
  void read(ArgumentReader& args) { args(loss, lse, counted); }
};

struct CrossEntropySpec {
  float smoothing;
  float ignored;
  void read(ArgumentReader& args) { args(smoothing, ignored); }
};

struct CrossEntropySaved {
  View x;  // [..,C], read
  View target;  // [..], read
  View lse;  // [..] float32, read
  void read(ArgumentReader& args) { args(x, target, lse); }
};

struct AdamState {
  View parameter;  // updated
  View first;  // float32, updated
  View second;  // float32, updated
  void read(ArgumentReader& args) { args(parameter, first, second); }
};

struct AdamStep {
  AdamKind kind;
  double rate;
  double beta1;
  double beta2;
  double epsilon;
  double decay;
  double correction1;
  double correction2;
  double mix;
  void read(ArgumentReader& args) { args(kind, rate, beta1, beta2, epsilon, decay, correction1, correction2, mix); }
};

struct AttendArguments {
  AttentionState state;
  TensorView q;  // [B,H,Sq,D], read
  KvBlock kv;
  Tile tile;
  void read(ArgumentReader& args) { args(state, q, kv, tile); }
};

struct AttendBackwardArguments {
  QkvGrads grads;
  TensorView q;  // [B,H,Sq,D], read
  SavedRows saved;
  KvBlock kv;
  Tile tile;
  void read(ArgumentReader& args) { args(grads, q, saved, kv, tile); }
};

struct MergeArguments {
  AttentionState into;
  AttentionState from;  // only read
  void read(ArgumentReader& args) { args(into, from); }
};

struct RowDotArguments {
  View out;  // [..] float32, written
  View a;  // [..,E], read
  View b;  // [..,E], read
  void read(ArgumentReader& args) { args(out, a, b); }
};

struct FillArguments {
  View out;  // written
  float value;
  void read(ArgumentReader& args) { args(out, value); }
};

struct CopyArguments {
  View out;  // written
  View x;  // read
  void read(ArgumentReader& args) { args(out, x); }
};

struct BinaryArguments {
  BinaryOp op;
  View out;  // written
  View a;  // read
  View b;  // read
  void read(ArgumentReader& args) { args(op, out, a, b); }
};

struct ScalarArguments {
  BinaryOp op;
  View out;  // written
  View x;  // read
  float value;
  void read(ArgumentReader& args) { args(op, out, x, value); }
};

struct UnaryArguments {
  UnaryOp op;
  View out;  // written
  View x;  // read
  void read(ArgumentReader& args) { args(op, out, x); }
};

struct UnaryBackwardArguments {
  UnaryOp op;
  View dx;  // written
  View x;  // read
  View dy;  // read
  void read(ArgumentReader& args) { args(op, dx, x, dy); }
};

struct GateArguments {
  std::optional<UnaryOp> activation{};
  View out;  // written
  View gate;  // read
  View x;  // read
  void read(ArgumentReader& args) { args(activation, out, gate, x); }
};

struct ReduceArguments {
  ReduceKind kind;
  View out;  // written
  View x;  // read
  void read(ArgumentReader& args) { args(kind, out, x); }
};

struct MatmulArguments {
  View out;  // [..,M,N], written, updated if accumulate
  View a;  // [..,M,K], read
  View b;  // [..,K,N], read
  bool accumulate;
  void read(ArgumentReader& args) { args(out, a, b, accumulate); }
};

struct LinearArguments {
  View out;  // [..,M,N], written
  View a;  // [..,M,K], read
  View b;  // [..,K,N], read
  LinearEpilogue epilogue;
  void read(ArgumentReader& args) { args(out, a, b, epilogue); }
};

struct SoftmaxArguments {
  View out;  // [..,E], written
  View x;  // [..,E], read
  void read(ArgumentReader& args) { args(out, x); }
};

struct SoftmaxBackwardArguments {
  View dx;  // [..,E], written
  View out;  // [..,E], read
  View dOut;  // [..,E], read
  void read(ArgumentReader& args) { args(dx, out, dOut); }
};

struct LayerNormArguments {
  View out;  // [..,E], written
  View x;  // [..,E], read
  NormParameters norm;
  NormStats stats;
  void read(ArgumentReader& args) { args(out, x, norm, stats); }
};

struct LayerNormBackwardArguments {
  NormGrads grads;
  View x;  // [..,E], read
  View dOut;  // [..,E], read
  OptionalView weight;  // [E], read, may be absent
  NormStats stats;  // only read
  void read(ArgumentReader& args) { args(grads, x, dOut, weight, stats); }
};

using RmsNormArguments = LayerNormArguments;

using RmsNormBackwardArguments = LayerNormBackwardArguments;

struct RotaryArguments {
  View out;  // [..,S,D], written
  View x;  // [..,S,D], read
  RotaryAngles angles;
  void read(ArgumentReader& args) { args(out, x, angles); }
};

struct RandomArguments {
  View out;  // written
  RandomSpec spec;
  void read(ArgumentReader& args) { args(out, spec); }
};

struct DropoutArguments {
  View out;  // written
  View x;  // read
  DropoutSpec spec;
  void read(ArgumentReader& args) { args(out, x, spec); }
};

struct GatherRowsArguments {
  View out;  // [..,E], written
  View table;  // [V,E], read
  View index;  // [..], read
  void read(ArgumentReader& args) { args(out, table, index); }
};

struct ScatterAddRowsArguments {
  View into;  // [V,E] float32, updated
  View x;  // [..,E], read
  View index;  // [..], read
  void read(ArgumentReader& args) { args(into, x, index); }
};

struct CrossEntropyArguments {
  CrossEntropyRows rows;
  View x;  // [..,C], read
  View target;  // [..], read
  CrossEntropySpec spec;
  void read(ArgumentReader& args) { args(rows, x, target, spec); }
};

struct CrossEntropyBackwardArguments {
  View dx;  // [..,C], written
  CrossEntropySaved saved;
  View dLoss;  // [..], read
  CrossEntropySpec spec;
  void read(ArgumentReader& args) { args(dx, saved, dLoss, spec); }
};

struct AdamArguments {
  AdamState state;
  View gradient;  // read
  AdamStep step;
  void read(ArgumentReader& args) { args(state, gradient, step); }
};

}  // namespace mosaic

/// Every kernel: X(name, type of its arguments).
#define MOSAIC_KERNELS(X) \
  X(attend, AttendArguments) \
  X(attendBackward, AttendBackwardArguments) \
  X(merge, MergeArguments) \
  X(rowDot, RowDotArguments) \
  X(fill, FillArguments) \
  X(copy, CopyArguments) \
  X(binary, BinaryArguments) \
  X(scalar, ScalarArguments) \
  X(unary, UnaryArguments) \
  X(unaryBackward, UnaryBackwardArguments) \
  X(gate, GateArguments) \
  X(reduce, ReduceArguments) \
  X(matmul, MatmulArguments) \
  X(linear, LinearArguments) \
  X(softmax, SoftmaxArguments) \
  X(softmaxBackward, SoftmaxBackwardArguments) \
  X(layerNorm, LayerNormArguments) \
  X(layerNormBackward, LayerNormBackwardArguments) \
  X(rmsNorm, RmsNormArguments) \
  X(rmsNormBackward, RmsNormBackwardArguments) \
  X(rotary, RotaryArguments) \
  X(random, RandomArguments) \
  X(dropout, DropoutArguments) \
  X(gatherRows, GatherRowsArguments) \
  X(scatterAddRows, ScatterAddRowsArguments) \
  X(crossEntropy, CrossEntropyArguments) \
  X(crossEntropyBackward, CrossEntropyBackwardArguments) \
  X(adam, AdamArguments)
