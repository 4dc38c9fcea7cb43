#include "simd/neon.h"

#include "kernels/isa_kernels.h"

namespace mosaic {
extern const Kernels kKernelsNeon;
const Kernels kKernelsNeon = makeKernels<Neon>();
}  // namespace mosaic
