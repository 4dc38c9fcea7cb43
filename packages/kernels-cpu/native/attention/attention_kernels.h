// What an instruction set supplies to attention: everything that touches vectors, block by block. The drivers
// (forward.cc, backward.cc) are ordinary code and decide which blocks there are.
//
// Lanes are queries. A *panel* is `width` query rows, held transposed: element d of row r lies at [d · width + r].
// Scores of a panel against a block of keys are then [key][width], every row statistic is a plain vector, and rows of
// K and V are read where they lie, one element broadcast at a time; only queries are ever transposed.
//
// There is a table for each instruction set and dtype of products (micro/micro_kernels.h). With float32 products
// operands of any dtype are converted; with bfloat16 products all of them are bfloat16, "an element" above is a pair
// of neighbours along the sum, and the operands whose sum runs along keys or rows are packed so that these are
// neighbours.
#pragma once

#include <cstdint>

#include "mosaic/view.h"
#include "simd/isa.h"
#include "simd/register_tile.h"

namespace mosaic {

/// Rows of a strided matrix.
struct Rows {
  const void* data;
  DType dtype;
  int64_t rowStride, columnStride;  // elements
};

/// A block of keys. `first` is the index of its first key, which masks refer to. It holds a multiple of `keyMultiple`
/// keys; those past the last are zeros.
struct KvRows {
  Operand k, v;     // [key][depth]; v is not set in the forward
  Operand columns;  // [depth][key] of V in the forward, of K in the backward; K has depth D, V has Dv
  int32_t first, count;
  UpcomingReads nextK, nextV;  // of the next block, prefetched while this one is folded; empty if none
};

/// Row r of a panel sees the keys lo[r] ≤ j < hi[r] of a block.
struct VisibleKeys {
  const int32_t *lo, *hi;  // [width]
};

/// An m or lse beyond this is large: it is not multiplied by log2 e, for the product's rounding would count.
inline constexpr float kLargeThreshold = 128;
inline bool isLarge(float lse) { return lse > kLargeThreshold || (lse < -kLargeThreshold && lse >= -__FLT_MAX__); }

/// What happens to scores and weights between the two products, for the rows of a panel. Positions are global.
struct ScoreModifiers {
  float softcap;           // s ← softcap · tanh(s / softcap); 0: not
  const float* slopes;     // [width], then s ← s − slope · |query − key|; null: not
  const int32_t* queries;  // [width], position of each row
  const int32_t* heads;    // [width], query head of each row among those of the model
  const int32_t* keys;     // position of each key of the tile
  uint32_t batch;          // sample among those of the model
  uint32_t dropoutThreshold;      // weights whose 24 random bits are less become 0; 0: none
  uint32_t philoxKey[2];         // of the random bits
  float dropoutScale;              // what weights that are not dropped count, 1 / (1 − probability)
};

/// A panel while keys are folded into it.
struct ForwardPanel {
  void* q;        // [D][width]; of float32 products times scale
  float* out;     // [Dv][width], Σ e^(s − m) v
  float*
      negMax;  // [width], −m · log2 e, or −m where `isLargeMode`. m may lag behind the true maximum, see fold_block.h
  float* sum;     // [width], Σ e^(s − m); 0 when nothing has been seen
  float* weightSum;  // [width], the same of the weights as products have them, rounded; of float32 products `sum`
  float* scores;  // [keys][width], scratch
  void* p;        // [keys][width], scratch; of float32 products the same memory as `scores`
  float scale;    // of bfloat16 products
  int32_t depth, valueDepth;  // D and Dv
  bool isLargeMode;           // whether some row has, or had, a large m
};

/// One query of the heads that share a key head, while keys are folded into it; lanes are keys.
struct QueryFold {
  static constexpr int32_t kVectors = 4;  // of keys, at a time
  const void* q;                          // [rows][depth]; of float32 products times scale
  float* out;         // [rows][valueDepth], Σ e^(s − m) v
  float* max;         // [rows], m, −∞ at first
  float* sum;         // [rows], Σ e^(s − m)
  float* weightSum;   // [rows], the same of the weights as products have them, rounded; of float32 products `sum`
  float* scores;      // [rows][keys], scratch
  void* weights;      // [rows][keys], scratch; of float32 products the same memory as `scores`
  void* columns;      // [depth][keys], scratch: the keys transposed, of bfloat16 pair by pair
  float scale;        // of bfloat16 products
  int32_t rows, depth, valueDepth;  // both depths are multiples of `depthMultiple`
};

/// A panel while its share of the gradients is computed. p and ds hold one block: [keys][stride].
struct BackwardPanel {
  void *q, *dOut;            // [D][width] and [Dv][width]; q of float32 products times scale
  float* dq;                 // [D][width], Σ ds k, not yet times scale
  float *negLse, *negDelta;  // [width]; −lse · log2 e, or −lse where `isLargeMode`; −∞ for a row that sees nothing
  void *p, *ds;              // p = e^(s − lse), ds = p (dOut · v − delta)
  void* dsPanel;             // ds as the products of dq read it: [keys][width] of bfloat16 pairs, else `ds`
  float* weights;            // [keys][width] of bfloat16 products: p before it is rounded
  int64_t stride, dsPanelStride;
  float scale;  // of bfloat16 products
  int32_t depth, valueDepth;
  bool isLargeMode;  // whether some row has a large lse
};

/// Memory of a block whose scores are modified, [keys][width] each.
struct ModifiedScratch {
  float *scores, *derivative;
};

/// One term of dk or dv: a float32 matrix [key][depth] += factor · coefficients [key][row] · rows [row][depth].
struct KeyGradient {
  const void* coefficients;  // p or ds
  int64_t coefficientStride;
  const void* rows;  // of dOut or q, as `packRows` gives them
  int64_t rowStride;
  int32_t rowCount, keyCount, depth;
  float factor;
  float* out;
  int64_t outRowStride, outColumnStride;
};

struct AttentionKernels {
  DType products;        // Float32 or BFloat16, see micro/micro_kernels.h
  int32_t width;         // rows of a panel
  int32_t depthMultiple; // rows of q, k, v and dOut are packed to this multiple, with zeros
  int32_t keyMultiple;   // blocks of keys begin and end at this multiple
  int32_t keyBlock;      // keys of a block in the forward
  int32_t gradientBlock; // keys of a block in the backward

  /// dst[r · stride + c] ← rows, zero from `columns` up to a multiple of `depthMultiple`.
  void (*unpack)(const Rows& rows, int64_t count, int64_t columns, void* dst, int64_t stride);
  /// dst[c · stride + r] ← rows[r · rowStride + c], zero from `count` up to a multiple of `keyMultiple`. Of bfloat16.
  void (*transpose)(const void* rows, int64_t rowStride, int64_t count, int64_t columns, void* dst, int64_t stride);
  /// Whether all of count × columns numbers are finite.
  bool (*isFinite)(const void* rows, int64_t stride, int64_t count, int64_t columns);
  /// panel[d · width + r] ← rows[r · stride + d] · factor, zero for r ≥ count. Reads whole rows of `depthMultiple`.
  /// The factor is that of float32 products.
  void (*toPanel)(const void* rows, int64_t stride, int64_t count, int64_t depth, float factor, void* panel);
  /// rows[r · stride + d] ← panel[d · width + r] · factor[r] for all r, float32. Writes whole rows of 16.
  void (*fromPanel)(const float* panel, const float* factor, int64_t depth, float* rows, int64_t stride);
  /// In place: `width` rows as products read them whose sum runs along rows.
  void (*pairRows)(void* rows, int64_t stride, int64_t depth);

  /// Folds a block that every row sees in full.
  void (*fold)(ForwardPanel& panel, const KvRows& keys);
  /// Folds a block of which rows see parts. A NaN reaches only rows that see it.
  void (*foldMasked)(ForwardPanel& panel, const KvRows& keys, const VisibleKeys& bounds);

  /// The same of modified scores, for rows that see parts or, without `bounds`, all. Only float32 products have it.
  void (*foldModified)(ForwardPanel& panel, const KvRows& keys, const VisibleKeys* bounds,
                       const ScoreModifiers& modifiers);

  /// p, ds and dq of a block that every row sees in full.
  void (*computeGradients)(const BackwardPanel& panel, const KvRows& keys);
  /// The same where rows see parts; p and ds are 0 elsewhere.
  void (*computeMaskedGradients)(const BackwardPanel& panel, const KvRows& keys, const VisibleKeys& bounds);
  /// The same of modified scores; p is left as dv needs it, with what was dropped. Only float32 products have it.
  void (*computeModifiedGradients)(const BackwardPanel& panel, const KvRows& keys, const VisibleKeys* bounds,
                                   const ScoreModifiers& modifiers, const ModifiedScratch& scratch);
  /// Adds a term to dk or dv.
  void (*addKeyGradient)(const KeyGradient& term);
  /// The same, skipping pairs that do not see each other, so that NaN in a row reaches only the keys it sees.
  void (*addMaskedKeyGradient)(const KeyGradient& term, int32_t firstKey, const VisibleKeys& bounds);
};

}  // namespace mosaic
