// The matrix multiplication kernels of an instruction set: packing, and the product of packed blocks.
//
// b is packed into panels as wide as a register tile: [panel][depth][columns]. a is read by rows, in place if possible.
// In bfloat16 products an element is a pair of neighbours along the reduction dimension (simd/register_tile.h).
#pragma once

#include <cstdint>

#include "mosaic/kernel_enums.h"
#include "mosaic/view.h"
#include "simd/register_tile.h"

namespace mosaic {

/// Rows per block of a, which fits the L2 cache: a multiple of the rows of every tile.
constexpr int64_t kBlockRows = 192;

struct Matrix {
  char* data;
  DType dtype;
  int64_t rowStride, columnStride;
};

static inline char* at(const Matrix& m, int64_t row, int64_t column) {
  return m.data + (row * m.rowStride + column * m.columnStride) * dtypeBytes(m.dtype);
}

/// Rows [row, row + rows) and columns [column, column + columns) of a matrix.
struct MatrixPart {
  int64_t row, rows, column, columns;
};

/// Returns the memory that packing `part` of a matrix reads; empty ranges if neither rows nor columns are dense.
static inline UpcomingReads readsOf(const Matrix& m, const MatrixPart& part) {
  if (part.rows == 0) return {};
  const int64_t elementSize = dtypeBytes(m.dtype);
  const char* data = at(m, part.row, part.column);
  if (m.rowStride == 1) return {data, part.columns, m.columnStride * elementSize, part.rows * elementSize};
  return {data, part.rows, m.rowStride * elementSize, m.columnStride == 1 ? part.columns * elementSize : 0};
}

/// The operations on finished sums before they are stored.
struct GemmEpilogue {
  const float* columnBias;  // [columns], or null
  const float* rowBias;     // [rows], or null
  bool hasActivation;
  UnaryOp activation;   // applied to the sums; with a gate, applied to the gate, which multiplies the sums
  const char* gate;     // in the dtype and strides of out; or null
  char* preActivation;  // receives the sums with their bias, in the dtype and strides of out; or null
};

/// Returns the epilogue for a later row and column of out, at offset `bytes` from the first element.
static inline GemmEpilogue epilogueAt(const GemmEpilogue& e, int64_t row, int64_t column, int64_t bytes) {
  return {e.columnBias ? e.columnBias + column : nullptr,
          e.rowBias ? e.rowBias + row : nullptr,
          e.hasActivation,
          e.activation,
          e.gate ? e.gate + bytes : nullptr,
          e.preActivation ? e.preActivation + bytes : nullptr};
}

/// Returns the epilogue of the transposed product.
static inline GemmEpilogue transposed(GemmEpilogue e) {
  const float* columnBias = e.columnBias;
  e.columnBias = e.rowBias;
  e.rowBias = columnBias;
  return e;
}

/// A block of b with at most `tileColumns` columns, and the destination panel.
struct BlockToPack {
  Matrix b;
  MatrixPart part;
  void* panel;
};

/// out ← a · panels, + sum if not null, + out if `add`, and the epilogue, if any.
struct GemmBlock {
  Operand a;           // [rows][depth], in the layout of `packRows`
  bool areRowsPacked;  // a was packed, and is in the caches
  const void* panels;  // [depth][columns] each
  int64_t panelBytes;  // distance between panels
  int64_t rows, columns;
  int32_t depth;
  const float* sum;  // [rows][columns]: the sum over earlier depths; or null
  int64_t sumStride;
  Matrix out;  // columnStride 1
  bool add;
  const GemmEpilogue* epilogue;  // starts at the first row and column of the block; or null
  BlockToPack next;              // packed while the first panel is multiplied; zero rows if none
  UpcomingReads nextRows;        // read after this block, to pack rows; empty if none
};

/// Finished sums and their destination: out ← sums, + out if `add`, and the epilogue, if any.
struct GemmStore {
  const float* sums;  // [rows][columns]
  int64_t sumStride;
  int64_t rows, columns;
  Matrix out;
  bool add;
  const GemmEpilogue* epilogue;  // starts at the first row and column; or null
};

/// out[r · outStride + j] ← Σ over d of a[r · aStride + d] · b[d, j], for few rows; b has rowStride 1.
struct RowDots {
  const float* a;   // in the layout of `widenRow`
  int64_t aStride;  // a multiple of 16
  Matrix b;         // starts at its first column
  int64_t rows, columns, depth;
  float* out;
  int64_t outStride;
};

struct GemmKernels {
  int32_t tileRows, tileColumns;
  int32_t depthMultiple;  // the depth of packed operands is padded to this multiple with zeros
  int32_t rowMultiple;    // the rows of packed operands are padded to this multiple
  int32_t blockDepth;     // depth of a block; a panel of the block takes at most 64 KiB

  /// Packs at most `tileColumns` columns of b into a panel.
  void (*packColumns)(const Matrix& b, const MatrixPart& part, void* panel);
  /// Returns rows of a, whose columns are the reduction dimension, for multiplication by `panels` panels: in place if
  /// possible, else packed into `buffer`.
  Operand (*packRows)(const Matrix& a, const MatrixPart& part, int64_t panels, void* buffer);
  void (*multiply)(const GemmBlock& block);
  /// Stores sums to any dtype and strides.
  void (*store)(const GemmStore& store);

  /// Converts a row of a to float32, padded with zeros to a multiple of 16.
  void (*widenRow)(const Matrix& a, int64_t row, int64_t columns, float* to);
  void (*multiplyRows)(const RowDots& dots);
};

}  // namespace mosaic
