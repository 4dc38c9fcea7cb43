// The attention kernels of an instruction set: everything that operates on vectors, block by block. The drivers
// (forward.cc, backward.cc) are ordinary code and determine the blocks.
//
// Lanes are queries. A *panel* is `width` query rows, stored transposed: element d of row r is at [d · width + r].
// Scores of a panel against a block of keys are then [key][width], and every row statistic is a plain vector. Rows of K
// and V are read in place, one element broadcast at a time; only queries are ever transposed.
//
// There is one table for each instruction set and product dtype (micro/micro_kernels.h). With float32 products,
// operands of any dtype are converted. With bfloat16 products, all operands are bfloat16, and "an element" above is a
// pair of neighbours along the reduction dimension. Operands that are reduced over keys or rows are packed so that
// these are neighbours.
#pragma once

#include <cstdint>

#include "mosaic/view.h"
#include "simd/isa.h"
#include "simd/prefetch.h"
#include "simd/register_tile.h"

namespace mosaic {

/// Rows of a strided matrix.
struct Rows {
  const void* data;
  DType dtype;
  int64_t rowStride, columnStride;  // elements
};

/// Keys that a kernel converts to float32 part by part, as its tiles read them. A part stays in the L1 cache, which a
/// copy of a whole block does not; but every panel converts it again.
struct StagedRows {
  /// Rows per part: at least those of a tile.
  static constexpr int32_t kMaxTileRows = 16;
  Rows rows;  // of whole vectors, with unit column stride; no data: not staged
  float* part;
};

/// A block of keys. `first` is the index of its first key, in the numbering that masks use. The block is padded with
/// zero keys to a multiple of `keyMultiple`.
struct KvRows {
  Operand k, v;     // [key][depth]; v is not set in the forward
  Operand columns;  // [depth][key] of V in the forward, of K in the backward; K has depth D, V has Dv
  int32_t first, count;
  StagedRows stagedK;  // replaces k in `fold`; float32 products only
  Rows valueRows;      // replaces columns in `fold` if it has data, see `readsValueRows`
  UpcomingReads nextK, nextV;  // prefetch hints: the next block, read while this one is folded; empty if none
};

/// Visibility bounds: row r of a panel attends to the keys lo[r] ≤ j < hi[r] of a block.
struct VisibleKeys {
  const int32_t *lo, *hi;  // [width]
};

/// Threshold above which |m| or |lse| is large and is not multiplied by log2 e, whose rounding error would matter.
inline constexpr float kLargeThreshold = 128;
inline bool isLarge(float lse) { return lse > kLargeThreshold || (lse < -kLargeThreshold && lse >= -__FLT_MAX__); }

/// The modifications of scores and weights between the two products, for the rows of a panel. Positions are global.
struct ScoreModifiers {
  float softcap;           // s ← softcap · tanh(s / softcap); 0: no softcap
  const float* slopes;     // [width]; s ← s − slope · |query − key|; null: no slopes
  const int32_t* queries;  // [width], position of each row
  const int32_t* heads;    // [width], query head of each row among those of the model
  const int32_t* keys;     // position of each key of the tile
  uint32_t batch;          // index of the sample in the model's batch
  uint32_t dropoutThreshold;      // a weight is dropped if its 24 random bits are below this; 0: no dropout
  uint32_t philoxKey[2];         // key of the random bits
  float dropoutScale;              // factor of weights that are not dropped, 1 / (1 − probability)
};

/// A panel while keys are folded into it.
struct ForwardPanel {
  void* q;        // [D][width]; premultiplied by scale for float32 products
  float* out;     // [Dv][width], Σ e^(s − m) v
  float*
      negMax;  // [width], −m · log2 e, or −m where `isLargeMode`. m may lag behind the true maximum, see fold_block.h
  float* sum;     // [width], Σ e^(s − m); 0 if no key has been attended to
  float* weightSum;  // [width], sum of the weights as rounded for the products; equal to `sum` for float32 products
  float* scores;  // [keys][width], scratch
  void* p;        // [keys][width], scratch; shares the memory of `scores` for float32 products
  float scale;    // used by bfloat16 products only
  int32_t depth, valueDepth;  // D and Dv
  bool isLargeMode;           // whether the m of some row is, or was, large
  RowPrefetch* upcoming;      // makes a step for each tile of scores; may be null
};

/// One query of each head that shares a key head, while keys are folded into it. Lanes are keys.
struct QueryFold {
  /// Keys are transposed in parts of this size, which stay in the L1 cache until all rows have read them.
  static constexpr int32_t kColumnBytes = 16 << 10;
  static constexpr int32_t kVectors = 4;  // vectors of keys per call
  const void* q;                          // [rows][depth]; premultiplied by scale for float32 products
  float* out;         // [rows][valueDepth], Σ e^(s − m) v
  float* max;         // [rows], m, initially −∞
  float* sum;         // [rows], Σ e^(s − m)
  float* weightSum;   // [rows], sum of the weights as rounded for the products; equal to `sum` for float32 products
  float* scores;      // [rows][keys], scratch
  void* weights;      // [rows][keys], scratch; shares the memory of `scores` for float32 products
  void* columns;      // [kColumnBytes], scratch: a part of the keys transposed, for bfloat16 in pairs
  float scale;        // used by bfloat16 products only
  int32_t rows, depth, valueDepth;  // both depths are multiples of `depthMultiple`
};

/// A panel while its contribution to the gradients is computed. p and ds hold one block: [keys][stride].
struct BackwardPanel {
  void *q, *dOut;            // [D][width] and [Dv][width]; q is premultiplied by scale for float32 products
  float* dq;                 // [D][width], Σ ds k, not yet multiplied by scale
  float *negLse, *negDelta;  // [width]; −lse · log2 e, or −lse if `isLargeMode`; −∞ for a row without visible keys
  void *p, *ds;              // p = e^(s − lse), ds = p (dOut · v − delta)
  void* dsPanel;             // ds in the layout of the dq product: [keys][width] of bfloat16 pairs, else `ds`
  float* weights;            // [keys][width], only for bfloat16 products: p before rounding
  int64_t stride, dsPanelStride;
  float scale;  // used by bfloat16 products only
  int32_t depth, valueDepth;
  int32_t rowCount;  // the other rows are padding
  bool isLargeMode;  // whether the lse of some row is large
  RowPrefetch* upcoming;  // makes a step for each tile of p and of ds
};

/// Scratch memory for a block whose scores are modified, [keys][width] each.
struct ModifiedScratch {
  float *scores, *derivative;
};

/// One term of dk or dv: a float32 matrix [key][depth] += factor · coefficients [key][row] · rows [row][depth].
struct KeyGradient {
  const void* coefficients;  // p or ds
  int64_t coefficientStride;
  const void* rows;  // dOut or q, in the layout of `packRows`
  int64_t rowStride;
  int32_t rowCount, keyCount, depth;
  float factor;
  float* out;
  int64_t outRowStride, outColumnStride;
};

struct AttentionKernels {
  DType products;        // Float32 or BFloat16, see micro/micro_kernels.h
  int32_t width;         // rows per panel
  int32_t depthMultiple; // row length of q, k, v and dOut is padded to this multiple with zeros
  int32_t keyMultiple;   // blocks of keys begin and end at multiples of this
  int32_t tileKeys;      // blocks are divided at multiples of this, whole register tiles of scores
  int32_t keyBlock;      // keys per block in the forward
  int32_t gradientBlock; // keys per block in the backward
  bool readsValueRows;   // whether `fold` can read 16-bit V by rows, which are whole vectors

  /// dst[r · stride + c] ← rows, padded with zeros from `columns` to a multiple of `depthMultiple`.
  void (*unpack)(const Rows& rows, int64_t count, int64_t columns, void* dst, int64_t stride);
  /// dst[c · stride + r] ← rows[r · rowStride + c], padded with zeros from `count` to a multiple of `keyMultiple`.
  /// bfloat16 only.
  void (*transpose)(const void* rows, int64_t rowStride, int64_t count, int64_t columns, void* dst, int64_t stride);
  /// Whether all count × columns numbers are finite.
  bool (*isFinite)(const void* rows, int64_t stride, int64_t count, int64_t columns);
  /// panel[d · width + r] ← rows[r · stride + d] · factor, zero for r ≥ count. Reads whole rows, padded to
  /// `depthMultiple`. Only float32 products apply the factor.
  void (*toPanel)(const void* rows, int64_t stride, int64_t count, int64_t depth, float factor, void* panel);
  /// rows[r · stride + d] ← panel[d · width + r] · factor[r] for all r, float32. Writes rows padded to a multiple of
  /// 16.
  void (*fromPanel)(const float* panel, const float* factor, int64_t depth, float* rows, int64_t stride);
  /// Rearranges `width` rows in place into the layout of products that reduce over rows.
  void (*pairRows)(void* rows, int64_t stride, int64_t depth);

  /// Folds a block that is visible to every row in full. Other kernels do not accept `stagedK` and `valueRows`.
  void (*fold)(ForwardPanel& panel, const KvRows& keys);
  /// Folds a block that is partly visible to some rows. A NaN reaches only the rows that attend to it.
  void (*foldMasked)(ForwardPanel& panel, const KvRows& keys, const VisibleKeys& bounds);

  /// lse[r] ← lse of each row of a panel; any value for a row that has attended to no key.
  void (*computeLse)(const ForwardPanel& panel, double* lse);

  /// Folds a block with modified scores. Without `bounds`, every key is visible to every row. Float32 products only.
  void (*foldModified)(ForwardPanel& panel, const KvRows& keys, const VisibleKeys* bounds,
                       const ScoreModifiers& modifiers);

  /// Computes p, ds and dq of a block that is visible to every row in full.
  void (*computeGradients)(const BackwardPanel& panel, const KvRows& keys);
  /// Like `computeGradients`, for a block that is partly visible; p and ds are 0 for masked pairs.
  void (*computeMaskedGradients)(const BackwardPanel& panel, const KvRows& keys, const VisibleKeys& bounds);
  /// Like `computeGradients`, with modified scores; p is stored with dropout applied, as dv requires. Float32 products
  /// only.
  void (*computeModifiedGradients)(const BackwardPanel& panel, const KvRows& keys, const VisibleKeys* bounds,
                                   const ScoreModifiers& modifiers, const ModifiedScratch& scratch);
  /// Adds a term to dk or dv.
  void (*addKeyGradient)(const KeyGradient& term);
  /// Like `addKeyGradient`, but skips masked pairs, so that a NaN in a row reaches only the keys that the row attends
  /// to.
  void (*addMaskedKeyGradient)(const KeyGradient& term, int32_t firstKey, const VisibleKeys& bounds);
};

}  // namespace mosaic
