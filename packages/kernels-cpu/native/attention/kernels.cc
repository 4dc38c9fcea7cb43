#include "attention/kernels.h"

namespace mosaic {

const AttentionKernels& attentionKernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) return attentionKernelsAvx512();
  if (isa == Isa::Avx2) return attentionKernelsAvx2();
#endif
  (void)isa;
  return attentionKernelsScalar();
}

}  // namespace mosaic
