#include "micro/isa_micro_kernels.h"
#include "simd/avx512.h"

namespace mosaic {

extern const MicroKernels kMicroKernelsAvx512;
const MicroKernels kMicroKernelsAvx512 = makeMicroKernels<Avx512, Float32Operands>();

}  // namespace mosaic
