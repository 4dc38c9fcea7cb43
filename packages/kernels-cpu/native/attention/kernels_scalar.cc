#include "attention/isa_kernels.h"
#include "simd/scalar.h"

namespace mosaic {

const AttentionKernels& attentionKernelsScalar() {
  static constexpr AttentionKernels table = makeKernels<Scalar>();
  return table;
}

}  // namespace mosaic
