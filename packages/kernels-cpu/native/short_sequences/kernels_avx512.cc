#include "short_sequences/isa_kernels.h"
#include "simd/avx512.h"

namespace mosaic {

const ShortKernels& shortKernelsAvx512() {
  static constexpr ShortKernels table = makeShortKernels<Avx512>();
  return table;
}

}  // namespace mosaic
