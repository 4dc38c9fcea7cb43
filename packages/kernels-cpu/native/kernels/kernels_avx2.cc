#include "simd/avx2.h"

#include "kernels/kernels_of.h"

namespace mosaic {
extern const Kernels kKernelsAvx2;
const Kernels kKernelsAvx2 = kernelsOf<Avx2>();
}  // namespace mosaic
