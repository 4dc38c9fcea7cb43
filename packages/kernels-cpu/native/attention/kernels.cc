#include "attention/kernels.h"

#include <algorithm>

#include "attention/attention.h"
#include "pool/pause.h"

namespace mosaic {

const AttentionKernels& attentionKernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) return attentionKernelsAvx512();
  if (isa == Isa::Avx2) return attentionKernelsAvx2();
#endif
  (void)isa;
  return attentionKernelsScalar();
}

double fmaPeakGflops(Isa isa, Pool& pool) {
  const AttentionKernels& kernels = attentionKernels(isa);
  constexpr int64_t kRounds = 200'000;  // a fraction of a millisecond
  double best = 0;
  for (int i = 0; i < 8; ++i) {
    std::atomic<int64_t> operations{0};
    const int64_t start = monotonicNs();
    pool.parallelFor(pool.threads() * 8, [&](int64_t, int) {
      operations.fetch_add(static_cast<int64_t>(kernels.peak(kRounds / 8)), std::memory_order_relaxed);
    });
    best = std::max(best, static_cast<double>(operations.load()) / static_cast<double>(monotonicNs() - start));
  }
  return best;
}

}  // namespace mosaic
