// What an instruction set supplies to attention: everything that touches vectors, block by block. The drivers
// (forward.cc, backward.cc) are ordinary code and decide which blocks there are.
//
// Lanes are queries. A *panel* is `width` query rows, held transposed: element d of row r lies at [d · width + r].
// Scores of a panel against a block of keys are then [key][width], every row statistic is a plain vector, and rows of
// K and V are read where they lie, one element broadcast at a time; only queries are ever transposed.
#pragma once

#include <cstdint>

#include "mosaic/view.h"
#include "simd/isa.h"

namespace mosaic {

/// Rows of a strided matrix.
struct Rows {
  const void* data;
  DType dtype;
  int64_t rowStride, columnStride;  // elements
};

/// A block of keys as float32 with unit column stride. `first` is the index of its first key, which masks refer to.
struct KvRows {
  const float *k, *v;
  int64_t kStride, vStride;
  int32_t first, count;
};

/// Row r of a panel sees the keys lo[r] ≤ j < hi[r] of a block.
struct VisibleKeys {
  const int32_t *lo, *hi;  // [width]
};

/// An m or lse beyond this is large: it is not multiplied by log2 e, for the product's rounding would count.
inline constexpr float kLargeThreshold = 128;
inline bool isLarge(float lse) { return lse > kLargeThreshold || (lse < -kLargeThreshold && lse >= -__FLT_MAX__); }

/// A panel while keys are folded into it. A score s is q · k of a q that was multiplied by the scale.
struct ForwardPanel {
  float* q;       // [D][width], times scale
  float* out;     // [D][width], Σ e^(s − m) v
  float* negMax;  // [width], −m · log2 e, or −m where `large`. m may lag behind the true maximum, see fold_block.h
  float* sum;     // [width], Σ e^(s − m); 0 when nothing has been seen
  float* p;       // [keys][width], scratch
  int32_t depth;  // D
  bool large;     // whether some row has, or had, a large m
};

/// A panel while its share of the gradients is computed. p and ds hold one block: [keys][stride].
struct BackwardPanel {
  float *q, *dOut;           // [D][width]; q times scale
  float* dq;                 // [D][width], Σ ds k, not yet times scale
  float *negLse, *negDelta;  // [width]; −lse · log2 e, or −lse where `large`; −∞ for a row that sees nothing
  float *p, *ds;             // p = e^(s − lse), ds = p (dOut · v − delta)
  int64_t stride;
  int32_t depth;
  bool large;  // whether some row has a large lse
};

/// One term of dk or dv: a float32 matrix [key][depth] += factor · coefficients [key][row] · rows [row][depth].
struct KeyGradient {
  const float* coefficients;  // p or ds
  int64_t coefficientStride;
  const float* rows;  // dOut or q, zero-padded to a multiple of `rowPadding`
  int64_t rowStride;
  int32_t rowCount, keyCount, depth;
  float factor;
  float* out;
  int64_t outRowStride, outColumnStride;
};

struct AttentionKernels {
  int32_t width;       // rows of a panel
  int32_t rowPadding;  // unpacked rows are this multiple long

  /// dst[r · stride + c] ← rows as float32, zero from `columns` up to a multiple of `rowPadding`.
  void (*unpack)(const Rows& rows, int64_t count, int64_t columns, float* dst, int64_t stride);
  /// Whether all of count × columns numbers are finite.
  bool (*finite)(const float* rows, int64_t stride, int64_t count, int64_t columns);
  /// panel[d · width + r] ← rows[r · stride + d] · factor, zero for r ≥ count. Reads whole rows of `rowPadding`.
  void (*toPanel)(const float* rows, int64_t stride, int64_t count, int64_t depth, float factor, float* panel);
  /// rows[r · stride + d] ← panel[d · width + r] · factor[r] for all r. Writes whole rows of `rowPadding`.
  void (*fromPanel)(const float* panel, const float* factor, int64_t depth, float* rows, int64_t stride);

  /// Folds a block that every row sees in full.
  void (*fold)(ForwardPanel& panel, const KvRows& keys);
  /// Folds a block of which rows see parts. A NaN reaches only rows that see it.
  void (*foldMasked)(ForwardPanel& panel, const KvRows& keys, const VisibleKeys& visible);

  /// p, ds and dq of a block that every row sees in full.
  void (*gradient)(const BackwardPanel& panel, const KvRows& keys);
  /// The same where rows see parts; p and ds are 0 elsewhere.
  void (*gradientMasked)(const BackwardPanel& panel, const KvRows& keys, const VisibleKeys& visible);
  /// Adds a term to dk or dv.
  void (*keyGradient)(const KeyGradient& term);
  /// The same, skipping pairs that do not see each other, so that NaN in a row reaches only the keys it sees.
  void (*keyGradientMasked)(const KeyGradient& term, int32_t firstKey, const VisibleKeys& visible);

  /// Runs `rounds` rounds of independent multiply-adds on registers; returns the float operations done.
  double (*peak)(int64_t rounds);
};

/// The table of an instruction set that this machine supports.
const AttentionKernels& attentionKernels(Isa isa);

const AttentionKernels& attentionKernelsScalar();
const AttentionKernels& attentionKernelsAvx2();
const AttentionKernels& attentionKernelsAvx512();

}  // namespace mosaic
