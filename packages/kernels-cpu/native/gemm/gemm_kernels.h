// What an instruction set supplies to matrix multiplication: packing, and the product of packed blocks.
//
// b is packed into panels as wide as a register tile: [panel][depth][columns]. a is read by rows, where it lies if it
// can be. Of bfloat16 products an element is a pair of neighbours along the sum (simd/register_tile.h).
#pragma once

#include <cstdint>

#include "mosaic/kernel_enums.h"
#include "mosaic/view.h"
#include "simd/register_tile.h"

namespace mosaic {

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

/// What is done to finished sums before they are stored.
struct GemmEpilogue {
  const float* columnBias;  // [columns], or null
  const float* rowBias;     // [rows], or null
  bool hasActivation;
  UnaryOp activation;   // of sums; with a gate, of the gate, by which sums are multiplied
  const char* gate;     // in the dtype and strides of out; or null
  char* preActivation;  // sums with their bias go there, in the dtype and strides of out; or null
};

/// From a later row and column of out on, `bytes` behind the first.
static inline GemmEpilogue epilogueAt(const GemmEpilogue& e, int64_t row, int64_t column, int64_t bytes) {
  return {e.columnBias ? e.columnBias + column : nullptr,
          e.rowBias ? e.rowBias + row : nullptr,
          e.hasActivation,
          e.activation,
          e.gate ? e.gate + bytes : nullptr,
          e.preActivation ? e.preActivation + bytes : nullptr};
}

/// Of the transposed product.
static inline GemmEpilogue transposed(GemmEpilogue e) {
  const float* columnBias = e.columnBias;
  e.columnBias = e.rowBias;
  e.rowBias = columnBias;
  return e;
}

/// A block of b, of at most `tileColumns` columns, and the panel that it is packed into.
struct BlockToPack {
  Matrix b;
  MatrixPart part;
  void* panel;
};

/// out ← a · panels, + sum if given, + out if `add`, and the epilogue, if any.
struct GemmBlock {
  Operand a;           // [rows][depth], as `packRows` gave it
  const void* panels;  // [depth][columns] each
  int64_t panelBytes;  // from one to the next
  int64_t rows, columns;
  int32_t depth;
  const float* sum;  // [rows][columns]: of earlier depths; or null
  int64_t sumStride;
  Matrix out;  // columnStride 1
  bool add;
  const GemmEpilogue* epilogue;  // from the first row and column of the block; or null
  BlockToPack next;              // packed while the first panel is multiplied; without rows if none
};

/// Finished sums and where they go: out ← sums, + out if `add`, and the epilogue, if any.
struct GemmStore {
  const float* sums;  // [rows][columns]
  int64_t sumStride;
  int64_t rows, columns;
  Matrix out;
  bool add;
  const GemmEpilogue* epilogue;  // from the first row and column on; or null
};

/// out[r · outStride + j] ← Σ over d of a[r · aStride + d] · b[d, j], for few rows; b has rowStride 1.
struct RowDots {
  const float* a;   // as `widenRow` gave it
  int64_t aStride;  // a multiple of 16
  Matrix b;         // from its first column on
  int64_t rows, columns, depth;
  float* out;
  int64_t outStride;
};

struct GemmKernels {
  int32_t tileRows, tileColumns;
  int32_t depthMultiple;  // packed operands are this multiple deep, with zeros
  int32_t rowMultiple;    // and have this multiple of rows
  int32_t blockDepth;     // of a block: a panel of it lies in the first-level cache

  /// Columns of b, at most `tileColumns`, as a panel.
  void (*packColumns)(const Matrix& b, const MatrixPart& part, void* panel);
  /// Rows of a, whose columns are depths, which are multiplied by so many panels: where they lie if they can be read
  /// there, else in `buffer`.
  Operand (*packRows)(const Matrix& a, const MatrixPart& part, int64_t panels, void* buffer);
  void (*multiply)(const GemmBlock& block);
  /// Any dtype and strides.
  void (*store)(const GemmStore& store);

  /// A row of a as float32, followed by zeros up to a multiple of 16.
  void (*widenRow)(const Matrix& a, int64_t row, int64_t columns, float* to);
  void (*multiplyRows)(const RowDots& dots);
};

}  // namespace mosaic
