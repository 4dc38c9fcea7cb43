#include "short_sequences/isa_kernels.h"
#include "simd/scalar.h"

namespace mosaic {

const ShortKernels& shortKernelsScalar() {
  static constexpr ShortKernels table = makeShortKernels<Scalar>();
  return table;
}

}  // namespace mosaic
