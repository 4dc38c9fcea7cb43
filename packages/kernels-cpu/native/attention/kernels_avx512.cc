#include "attention/isa_kernels.h"
#include "simd/avx512.h"

namespace mosaic {

const AttentionKernels& attentionKernelsAvx512() {
  static constexpr AttentionKernels table = makeKernels<Avx512>();
  return table;
}

}  // namespace mosaic
