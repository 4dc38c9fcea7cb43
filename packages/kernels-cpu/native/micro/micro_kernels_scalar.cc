#include "micro/isa_micro_kernels.h"
#include "simd/scalar.h"

namespace mosaic {

extern const MicroKernels kMicroKernelsScalar;
const MicroKernels kMicroKernelsScalar = makeMicroKernels<Scalar, Float32Operands>();

}  // namespace mosaic
