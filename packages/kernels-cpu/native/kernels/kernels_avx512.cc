#include "simd/avx512.h"

#include "kernels/kernels_of.h"

namespace mosaic {
extern const Kernels kKernelsAvx512;
const Kernels kKernelsAvx512 = kernelsOf<Avx512>();
}  // namespace mosaic
