#include "micro/isa_micro_kernels.h"
#include "simd/neon.h"

namespace mosaic {

extern const MicroKernels kMicroKernelsNeonBf16;
const MicroKernels kMicroKernelsNeonBf16 = makeMicroKernels<NeonBf16, Bf16Operands>();

}  // namespace mosaic
