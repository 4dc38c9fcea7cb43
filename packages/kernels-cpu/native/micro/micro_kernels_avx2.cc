#include "micro/isa_micro_kernels.h"
#include "simd/avx2.h"

namespace mosaic {

extern const MicroKernels kMicroKernelsAvx2;
const MicroKernels kMicroKernelsAvx2 = makeMicroKernels<Avx2, Float32Operands>();

}  // namespace mosaic
