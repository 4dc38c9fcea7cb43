#include "simd/neon.h"

#include "kernels/isa_kernels.h"

namespace mosaic {
extern const Kernels kKernelsNeonBf16;
const Kernels kKernelsNeonBf16 = makeKernels<NeonBf16>();
}  // namespace mosaic
