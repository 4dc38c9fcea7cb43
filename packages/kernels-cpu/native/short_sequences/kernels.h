// What an instruction set supplies to attention of short sequences.
#pragma once

#include <cstdint>

#include "mosaic/kernel_arguments.h"
#include "simd/isa.h"

namespace mosaic {

/// Sizes of all sequences of a call. A tensor of `lanes` sequences is held as [row][stride][lane], zero from `depth`.
struct ShortShape {
  int32_t rows, keys, depth;
  int32_t stride;          // depth, rounded up to a multiple of `lanes`
  int32_t keyHeads, group;  // Hkv, and query heads of each
  const uint8_t* visible;  // [rows][keys]; null where every row sees every key
};

/// Consecutive sequences, by b · Hkv + h of their keys: at most `lanes`.
struct ShortRange {
  int64_t first;
  int32_t count;
};

/// The kernels of one instruction set; of the arguments they use data, no functions: see simd/isa.h.
struct ShortKernels {
  int32_t lanes;
  /// Floats to work in.
  int64_t (*forwardScratch)(const ShortShape& shape);
  int64_t (*backwardScratch)(const ShortShape& shape);
  void (*forward)(const AttendArguments& args, const ShortShape& shape, const ShortRange& range, float* scratch);
  void (*backward)(const AttendBackwardArguments& args, const ShortShape& shape, const ShortRange& range,
                   float* scratch);
};

const ShortKernels& shortKernelsScalar();
const ShortKernels& shortKernelsAvx2();
const ShortKernels& shortKernelsAvx512();
const ShortKernels& shortKernelsNeon();

}  // namespace mosaic
