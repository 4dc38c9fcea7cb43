// Kernels in which a warp processes one row, the last axis, and their arguments.
#pragma once

#include "kernels/operand.h"

namespace mosaic::cuda {

/// `rows` iterates over all axes except the last; an operand's `step` is the stride of its last axis, of `length`
/// elements.
template <int N>
struct Rows {
  Loop<N> rows;
  int32_t length;
  int64_t step[N];
  /// Whether every row may be accessed kVectorLength elements at a time. Operands with step 0 have one element per row.
  bool isVectorized;
};

struct SoftmaxParameters {
  Rows<2> layout;  // out, x
};
struct SoftmaxBackwardParameters {
  Rows<3> layout;  // dx, out, dOut
};
struct RowDotParameters {
  Rows<3> layout;  // out (one element per row), a, b
};

/// weight and bias, [E], are absent if data is null.
struct NormParameters {
  Rows<4> layout;  // out, x, mean, rstd; mean is absent for RMSNorm
  Operand weight, bias;
  float epsilon;
};
struct NormBackwardParameters {
  Rows<5> layout;  // dx, x, dOut, mean, rstd
  Operand weight;
};
/// Adds to dWeight and dBias [E]; a block owns 32 columns.
struct NormColumnsParameters {
  Rows<4> layout;  // x, dOut, mean, rstd
  Operand dWeight, dBias;
};

/// Many threads, because there are few blocks.
constexpr unsigned kNormColumnsThreads = 512;

/// Kernels that take indices.
enum class IndexKernel : int32_t { GatherRows, ScatterAddRows, CrossEntropy, CrossEntropyBackward };

/// The first invalid index that a kernel found, if any. Valid indices are integers from 0 to count − 1.
struct BadIndex {
  uint32_t found;
  float value;
  int64_t count;
  IndexKernel kernel;
};

struct CrossEntropyParameters {
  Rows<5> layout;  // x, loss, lse, counted, target
  float smoothing, ignored;
  BadIndex* badIndex;
};
struct CrossEntropyBackwardParameters {
  Rows<5> layout;  // dx, x, target, lse, dLoss
  float smoothing, ignored;
  BadIndex* badIndex;
};

/// out [.., E] ← the rows of table [V, E] selected by index [..].
struct GatherRowsParameters {
  Rows<2> layout;  // out, index
  Operand table;
  int64_t count;
  BadIndex* badIndex;
};
/// into [V, E] += x [.., E]. A warp owns a row of `into` and adds its rows of x in order.
struct ScatterAddRowsParameters {
  Rows<2> layout;  // x, index
  Operand into;
  int64_t count;
  BadIndex* badIndex;
};

// Merging attention states.

/// into ← the state over the keys of both states. A warp owns a row; out has the rows' length, lse one element per row.
struct MergeParameters {
  Rows<4> layout;  // into.out, into.lse, from.out, from.lse
};

}  // namespace mosaic::cuda
