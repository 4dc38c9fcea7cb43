#include "short_sequences/isa_kernels.h"
#include "simd/neon.h"

namespace mosaic {

const ShortKernels& shortKernelsNeon() {
  static constexpr ShortKernels table = makeShortKernels<Neon>();
  return table;
}

}  // namespace mosaic
