// The table of one instruction set; included once per kernels_<isa>.cc.
#pragma once

#include "kernels/adam.h"
#include "kernels/copy.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/indexed.h"
#include "kernels/norm.h"
#include "kernels/random.h"
#include "kernels/reduce.h"
#include "kernels/rows.h"
#include "kernels/softmax.h"
#include "kernels/table.h"
#include "kernels/unary.h"

namespace mosaic {
namespace {

template <class T>
constexpr Kernels kernelsOf() {
  Kernels kernels{};
  kernels.fill = fill<T>;
  kernels.copy = copy<T>;
  kernels.binary = binary<T>;
  kernels.scalar = scalar<T>;
  kernels.unary = unary<T>;
  kernels.unaryBackward = unaryBackward<T>;
  kernels.reduce = reduce<T>;
  kernels.rowDot = rowDot<T>;
  kernels.matmul = matmul<T>;
  kernels.softmax = softmax<T>;
  kernels.softmaxBackward = softmaxBackward<T>;
  kernels.norm = norm<T>;
  kernels.normBackward = normBackward<T>;
  kernels.random = random<T>;
  kernels.dropout = dropout<T>;
  kernels.gatherRows = gatherRows<T>;
  kernels.scatterAddRows = scatterAddRows<T>;
  kernels.crossEntropy = crossEntropy<T>;
  kernels.crossEntropyBackward = crossEntropyBackward<T>;
  kernels.adam = adam<T>;
  return kernels;
}

}  // namespace
}  // namespace mosaic
