// Every kernel, once per instruction set.
//
// Outputs come first. Operands are strided and of any dtype; arithmetic is float32 and rounds once at the end. What is
// computed does not depend on the number of threads. Kernels block until done; they run on the stream's thread.
#pragma once

#include <cstdint>

#include "mosaic/view.h"
#include "pool/pool.h"
#include "simd/isa.h"

namespace mosaic {

enum class BinaryOp : int32_t { Add, Sub, Mul, Div, Max };
enum class UnaryOp : int32_t { Neg, Exp, Log, Sqrt, Rsqrt, Tanh, Sigmoid, Relu, Gelu, Square };
enum class ReduceKind : int32_t { Sum, Max };

/// weight and bias [E] may be null.
struct NormParameters {
  const View *weight, *bias;
  float epsilon;
};
/// [.., 1]; mean is null for RMSNorm.
struct NormStats {
  const View *mean, *rstd;
};
/// dx is written; dWeight and dBias, [E] or null, are added to.
struct NormGrads {
  const View *dx, *dWeight, *dBias;
};

enum class RandomKind : int32_t { Uniform, Normal };
/// uniform in [a, b); normal with mean a and standard deviation b.
struct RandomSpec {
  RandomKind kind;
  float a, b;
  uint64_t seed, stream;
};

/// `random`'s numbers, uniform in [0, 1): element [i, j, …] has number offset + i · strides[0] + j · strides[1] + ….
struct DropoutSpec {
  float probability;
  uint64_t seed, stream;
  int64_t offset;
  int64_t strides[kMaxRank];
};

/// What kernels that are given indices say of the first one that names nothing.
struct BadIndex {
  bool found;
  float value;
};

/// [..] float32 each.
struct CrossEntropyRows {
  const View *loss, *lse, *counted;
};
struct CrossEntropySaved {
  const View *x, *target, *lse;
};
struct CrossEntropySpec {
  float smoothing, ignored;
};

enum class AdamKind : int32_t { AdamW, ScheduleFree };
/// first: the mean of gradients, or z; second: the mean of their squares.
struct AdamState {
  const View *parameter, *first, *second;
};
struct AdamStep {
  AdamKind kind;
  double rate, beta1, beta2, epsilon, decay, correction1, correction2, mix;
};

struct Kernels {
  void (*fill)(const View& out, float value, Pool& pool);
  void (*copy)(const View& out, const View& x, Pool& pool);
  void (*binary)(BinaryOp op, const View& out, const View& a, const View& b, Pool& pool);
  void (*scalar)(BinaryOp op, const View& out, const View& x, float value, Pool& pool);
  void (*unary)(UnaryOp op, const View& out, const View& x, Pool& pool);
  void (*unaryBackward)(UnaryOp op, const View& dx, const View& x, const View& dy, Pool& pool);
  void (*reduce)(ReduceKind kind, const View& out, const View& x, Pool& pool);
  void (*rowDot)(const View& out, const View& a, const View& b, Pool& pool);
  void (*matmul)(const View& out, const View& a, const View& b, bool accumulate, Pool& pool);
  void (*softmax)(const View& out, const View& x, Pool& pool);
  void (*softmaxBackward)(const View& dx, const View& out, const View& dOut, Pool& pool);
  void (*norm)(const View& out, const View& x, const NormParameters& norm, const NormStats& stats, Pool& pool);
  void (*normBackward)(const NormGrads& grads, const View& x, const View& dOut, const View* weight,
                       const NormStats& stats, Pool& pool);
  void (*random)(const View& out, const RandomSpec& spec, Pool& pool);
  void (*dropout)(const View& out, const View& x, const DropoutSpec& spec, Pool& pool);
  BadIndex (*gatherRows)(const View& out, const View& table, const View& index, Pool& pool);
  BadIndex (*scatterAddRows)(const View& into, const View& x, const View& index, Pool& pool);
  BadIndex (*crossEntropy)(const CrossEntropyRows& rows, const View& x, const View& target,
                           const CrossEntropySpec& spec, Pool& pool);
  BadIndex (*crossEntropyBackward)(const View& dx, const CrossEntropySaved& saved, const View& dLoss,
                                   const CrossEntropySpec& spec, Pool& pool);
  void (*adam)(const AdamState& state, const View& gradient, const AdamStep& step, Pool& pool);
};

const Kernels& kernelsFor(Isa isa);

}  // namespace mosaic
