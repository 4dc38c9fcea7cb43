#include "short_sequences/isa_kernels.h"
#include "simd/avx2.h"

namespace mosaic {

const ShortSequenceKernels &shortSequenceKernelsAvx2() {
  static constexpr ShortSequenceKernels table = makeShortSequenceKernels<Avx2>();
  return table;
}

}  // namespace mosaic
