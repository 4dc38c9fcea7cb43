#include "short_sequences/isa_kernels.h"
#include "simd/neon.h"

namespace mosaic {

const ShortSequenceKernels &shortSequenceKernelsNeon() {
  static constexpr ShortSequenceKernels table = makeShortSequenceKernels<Neon>();
  return table;
}

}  // namespace mosaic
