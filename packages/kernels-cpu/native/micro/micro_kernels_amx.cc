#include "micro/isa_micro_kernels.h"
#include "simd/amx.h"

namespace mosaic {

extern const MicroKernels kMicroKernelsAmx;
const MicroKernels kMicroKernelsAmx = makeMicroKernels<Amx, Bf16Operands>();

}  // namespace mosaic
