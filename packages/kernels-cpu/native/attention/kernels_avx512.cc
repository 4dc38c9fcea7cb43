#include "attention/kernels_of.h"
#include "simd/avx512.h"

namespace mosaic {

const AttentionKernels& attentionKernelsAvx512() {
  static constexpr AttentionKernels table = kernelsOf<Avx512>();
  return table;
}

}  // namespace mosaic
