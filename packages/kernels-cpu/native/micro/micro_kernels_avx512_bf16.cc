#include "micro/isa_micro_kernels.h"
#include "simd/avx512_bf16.h"

namespace mosaic {

extern const MicroKernels kMicroKernelsAvx512Bf16;
const MicroKernels kMicroKernelsAvx512Bf16 = makeMicroKernels<Avx512Bf16, Bf16Operands>();

}  // namespace mosaic
