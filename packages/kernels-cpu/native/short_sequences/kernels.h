// The short-sequence attention kernels of an instruction set.
#pragma once

#include <cstdint>

#include "mosaic/kernel_arguments.h"
#include "simd/isa.h"

namespace mosaic {

/// The sizes of all sequences of a call. A tensor of `lanes` sequences is stored as [row][stride][lane], zero from
/// `depth` on.
struct ShortSequenceShape {
  int32_t rows, keys, depth;
  int32_t stride;          // depth, rounded up to a multiple of `lanes`
  int32_t keyHeads, group;  // Hkv, and query heads per key head
  const uint8_t* visible;  // [rows][keys]; null if every key is visible to every row
};

/// Consecutive sequences, indexed by b · Hkv + h of their keys; at most `lanes`.
struct ShortSequenceRange {
  int64_t first;
  int32_t count;
};

/// The kernels of one instruction set. They use the arguments' data, but not their functions: see simd/isa.h.
struct ShortSequenceKernels {
  int32_t lanes;
  /// Returns the number of floats of scratch memory.
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
