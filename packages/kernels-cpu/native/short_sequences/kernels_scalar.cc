#include "short_sequences/isa_kernels.h"
#include "simd/scalar.h"

namespace mosaic {

const ShortSequenceKernels &shortSequenceKernelsScalar() {
  static constexpr ShortSequenceKernels table = makeShortSequenceKernels<Scalar>();
  return table;
}

}  // namespace mosaic
