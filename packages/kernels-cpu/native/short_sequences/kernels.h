// What an instruction set supplies to attention of short sequences.
#pragma once

#include <cstdint>

#include "mosaic/kernel_arguments.h"
#include "simd/isa.h"

namespace mosaic {

/// Sizes of all sequences of a call. A tensor of `lanes` sequences is held as [row][stride][lane], zero from `depth`.
struct ShortSequenceShape {
  int32_t rows, keys, depth;
  int32_t stride;          // depth, rounded up to a multiple of `lanes`
  int32_t keyHeads, group;  // Hkv, and query heads of each
  const uint8_t* visible;  // [rows][keys]; null where every row sees every key
};

/// Consecutive sequences, by b · Hkv + h of their keys: at most `lanes`.
struct ShortSequenceRange {
  int64_t first;
  int32_t count;
};

/// The kernels of one instruction set; of the arguments they use data, no functions: see simd/isa.h.
struct ShortSequenceKernels {
  int32_t lanes;
  /// Floats to work in.
  int64_t (*forwardScratchFloats)(const ShortSequenceShape &shape);
  int64_t (*backwardScratchFloats)(const ShortSequenceShape &shape);
  void (*forward)(const AttendArguments &args, const ShortSequenceShape &shape, const ShortSequenceRange &range,
                  float *scratch);
  void (*backward)(const AttendBackwardArguments &args, const ShortSequenceShape &shape,
                   const ShortSequenceRange &range, float *scratch);
};

const ShortSequenceKernels &shortSequenceKernelsScalar();
const ShortSequenceKernels &shortSequenceKernelsAvx2();
const ShortSequenceKernels &shortSequenceKernelsAvx512();
const ShortSequenceKernels &shortSequenceKernelsNeon();

}  // namespace mosaic
