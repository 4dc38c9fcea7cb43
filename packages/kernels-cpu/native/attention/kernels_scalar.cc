#include "attention/kernels_of.h"
#include "simd/scalar.h"

namespace mosaic {

const AttentionKernels& attentionKernelsScalar() {
  static constexpr AttentionKernels table = kernelsOf<Scalar>();
  return table;
}

}  // namespace mosaic
