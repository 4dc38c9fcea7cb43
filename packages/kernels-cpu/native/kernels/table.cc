#include "kernels/table.h"

namespace mosaic {

extern const Kernels kKernelsScalar;
#if defined(__x86_64__)
extern const Kernels kKernelsAvx2, kKernelsAvx512;
#endif

const Kernels& kernelsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) return kKernelsAvx512;
  if (isa == Isa::Avx2) return kKernelsAvx2;
#endif
  (void)isa;
  return kKernelsScalar;
}

}  // namespace mosaic
