#include "attention/isa_kernels.h"
#include "simd/avx2.h"

namespace mosaic {

const AttentionKernels& attentionKernelsAvx2() {
  static constexpr AttentionKernels table = makeKernels<Avx2>();
  return table;
}

}  // namespace mosaic
