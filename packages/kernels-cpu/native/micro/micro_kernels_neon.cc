#include "micro/isa_micro_kernels.h"
#include "simd/neon.h"

namespace mosaic {

extern const MicroKernels kMicroKernelsNeon;
const MicroKernels kMicroKernelsNeon = makeMicroKernels<Neon, Float32Operands>();

}  // namespace mosaic
