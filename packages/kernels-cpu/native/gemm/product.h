// A matrix product: its operands as matrices, and the leading axes over which it is repeated.
#pragma once

#include "gemm/gemm_kernels.h"
#include "kernels/loop.h"
#include "mosaic/kernel_arguments.h"

namespace mosaic {
namespace {

struct Product {
  Matrix out, a, b;
  int64_t m, n, k;
  bool accumulate;
  const GemmEpilogue* epilogue;  // starts at the first row and column of out; or null
};

/// The operands of a product, and whether it is added to out.
struct MatmulOperands {
  const View &out, &a, &b;
  bool accumulate;
};

/// Products of one shape along leading axes that broadcast.
struct ProductBatch {
  Loop<3> loop;  // over out, a, b; includes the inner axis
  int64_t count;
  Product product;
  bool isTransposed;  // the rows of out are columns of the product
  bool hasFewRows;    // see row_dots.h
};

/// Maximum number of rows for row_dots.h; with more rows, packing b pays off.
constexpr int64_t kMaxFewRows = 16;

MOSAIC_INLINE void swapAndTranspose(Matrix& a, Matrix& b) {
  const Matrix oldA = a;
  a = {b.data, b.dtype, b.columnStride, b.rowStride};
  b = {oldA.data, oldA.dtype, oldA.columnStride, oldA.rowStride};
}

MOSAIC_INLINE Matrix asMatrix(const View& view) {
  return {static_cast<char*>(view.data), view.dtype, view.stride[view.rank - 2], view.stride[view.rank - 1]};
}

MOSAIC_INLINE View batchDims(const View& view) {
  View result = view;
  result.rank -= 2;
  return result;
}

/// Merges leading axes into the rows if b is the same along them and rows are evenly spaced: a [B, S, E] · b [E, F] is
/// one product.
MOSAIC_INLINE void mergeBatchIntoRows(ProductBatch& batch) {
  Loop<3>& loop = batch.loop;
  Product& p = batch.product;
  while (batch.count > 1) {
    const int innerAxis = loop.rank - 1;
    if (loop.stride[2][innerAxis] != 0 || loop.stride[0][innerAxis] != p.m * p.out.rowStride ||
        loop.stride[1][innerAxis] != p.m * p.a.rowStride) {
      return;
    }
    p.m *= loop.shape[innerAxis];
    batch.count /= loop.shape[innerAxis];
    if (innerAxis == 0) return;
    loop.rank--;
  }
}

/// outᵀ ← bᵀ · aᵀ
MOSAIC_INLINE void transposeBatch(ProductBatch& batch) {
  Product& p = batch.product;
  swapAndTranspose(p.a, p.b);
  p.out = {p.out.data, p.out.dtype, p.out.columnStride, p.out.rowStride};
  const int64_t m = p.m;
  p.m = p.n;
  p.n = m;
  Loop<3>& loop = batch.loop;
  for (int axis = 0; axis < loop.rank; axis++) {
    const int64_t stride = loop.stride[1][axis];
    loop.stride[1][axis] = loop.stride[2][axis];
    loop.stride[2][axis] = stride;
  }
  loop.dtype[1] = p.a.dtype;
  loop.dtype[2] = p.b.dtype;
}

MOSAIC_INLINE ProductBatch makeBatch(const MatmulOperands& operands) {
  const auto& [out, a, b, accumulate] = operands;
  const View views[3] = {batchDims(out), batchDims(a), batchDims(b)};
  ProductBatch batch{makeLoop<3>({&views[0], &views[1], &views[2]}), 0, {}, false, false};
  batch.count = batch.loop.size;
  batch.product = {asMatrix(out),           asMatrix(a),         asMatrix(b), out.shape[out.rank - 2],
                   out.shape[out.rank - 1], a.shape[a.rank - 1], accumulate,  nullptr};
  mergeBatchIntoRows(batch);
  const Product& p = batch.product;
  const bool isOutTransposed = p.out.columnStride != 1 && (p.out.rowStride == 1 || p.n == 1);
  // For few rows, packing b does not pay off; with a long sum, the smaller operand is packed instead. It pays off even
  // less if packing transposes b, as for a weight [out, in], whose rows are then read in place.
  const bool doesPackingTransposeB = p.b.rowStride == 1 && p.b.columnStride != 1 && p.a.columnStride == 1;
  const bool hasLongSum = 2 * p.n <= p.k || (doesPackingTransposeB && p.k >= 512 && p.k >= 16 * p.m);
  const bool isSmallerOperandPacked = 2 * p.m <= p.n && hasLongSum;
  batch.hasFewRows = batch.count == 1 && !isOutTransposed && doesPackingTransposeB && p.m <= kMaxFewRows && p.m < p.n;
  if (batch.hasFewRows) return batch;
  batch.isTransposed = isOutTransposed || isSmallerOperandPacked;
  if (batch.isTransposed) transposeBatch(batch);
  return batch;
}

MOSAIC_INLINE Product productAt(const ProductBatch& batch, int64_t index) {
  Product p = batch.product;
  char* data[3] = {p.out.data, p.a.data, p.b.data};
  if (batch.count > 1) {
    for (int axis = batch.loop.rank - 1; axis >= 0; axis--) {
      const int64_t step = index % batch.loop.shape[axis];
      index /= batch.loop.shape[axis];
      for (int i = 0; i < 3; i++) data[i] += step * batch.loop.stride[i][axis] * dtypeBytes(batch.loop.dtype[i]);
    }
  }
  p.out.data = data[0];
  p.a.data = data[1];
  p.b.data = data[2];
  return p;
}

}  // namespace
}  // namespace mosaic
