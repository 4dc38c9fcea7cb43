#include "attention/kernels_of.h"
#include "simd/avx2.h"

namespace mosaic {

const AttentionKernels& attentionKernelsAvx2() {
  static constexpr AttentionKernels table = kernelsOf<Avx2>();
  return table;
}

}  // namespace mosaic
