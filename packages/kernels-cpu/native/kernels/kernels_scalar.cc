#include "simd/scalar.h"

#include "kernels/isa_kernels.h"

namespace mosaic {
extern const Kernels kKernelsScalar;
const Kernels kKernelsScalar = makeKernels<Scalar>();
}  // namespace mosaic
