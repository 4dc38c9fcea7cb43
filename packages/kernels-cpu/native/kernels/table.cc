#include "kernels/table.h"

#include <cstdio>

#include "stream/failure.h"

namespace mosaic {

extern const Kernels kKernelsScalar;
#if defined(__x86_64__)
extern const Kernels kKernelsAvx2, kKernelsAvx512;
#endif

const Kernels& kernelsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) return kKernelsAvx512;
  if (isa == Isa::Avx2) return kKernelsAvx2;
#endif
  (void)isa;
  return kKernelsScalar;
}

void rejectIndex(const char* kernel, float value, int64_t count) {
  char message[160];
  std::snprintf(message, sizeof message, "%s: expected whole numbers from 0 to %lld, received %g", kernel,
                static_cast<long long>(count - 1), static_cast<double>(value));
  throw Failure(MOSAIC_FAILURE_DEVICE, message);
}

}  // namespace mosaic
