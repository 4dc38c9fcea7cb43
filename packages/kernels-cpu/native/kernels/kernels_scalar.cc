#include "simd/scalar.h"

#include "kernels/kernels_of.h"

namespace mosaic {
extern const Kernels kKernelsScalar;
const Kernels kKernelsScalar = kernelsOf<Scalar>();
}  // namespace mosaic
