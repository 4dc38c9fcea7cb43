#include "simd/avx512.h"

#include "kernels/isa_kernels.h"

namespace mosaic {
extern const Kernels kKernelsAvx512;
const Kernels kKernelsAvx512 = makeKernels<Avx512>();
}  // namespace mosaic
