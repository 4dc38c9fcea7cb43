// The table of one instruction set; included once per kernels_<isa>.cc.
#pragma once

#include "kernels/copy.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/table.h"

namespace mosaic {
namespace {

template <class T>
constexpr Kernels kernelsOf() {
  Kernels kernels{};
  kernels.fill = fill<T>;
  kernels.copy = copy<T>;
  kernels.binary = binary<T>;
  kernels.scalar = scalar<T>;
  kernels.matmul = matmul<T>;
  return kernels;
}

}  // namespace
}  // namespace mosaic
