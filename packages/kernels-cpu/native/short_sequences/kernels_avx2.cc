#include "short_sequences/isa_kernels.h"
#include "simd/avx2.h"

namespace mosaic {

const ShortKernels& shortKernelsAvx2() {
  static constexpr ShortKernels table = makeShortKernels<Avx2>();
  return table;
}

}  // namespace mosaic
