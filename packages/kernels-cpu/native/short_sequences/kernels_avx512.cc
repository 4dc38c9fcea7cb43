#include "short_sequences/isa_kernels.h"
#include "simd/avx512.h"

namespace mosaic {

const ShortSequenceKernels &shortSequenceKernelsAvx512() {
  static constexpr ShortSequenceKernels table = makeShortSequenceKernels<Avx512>();
  return table;
}

}  // namespace mosaic
