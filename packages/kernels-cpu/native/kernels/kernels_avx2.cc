#include "simd/avx2.h"

#include "kernels/isa_kernels.h"

namespace mosaic {
extern const Kernels kKernelsAvx2;
const Kernels kKernelsAvx2 = makeKernels<Avx2>();
}  // namespace mosaic
