#include "micro/micro_kernels.h"

#include <algorithm>
#include <atomic>

#include "micro/peak.h"
#include "pool/pause.h"

namespace mosaic {

extern const MicroKernels kMicroKernelsScalar;
#if defined(__x86_64__)
extern const MicroKernels kMicroKernelsAvx2, kMicroKernelsAvx512, kMicroKernelsAvx512Bf16, kMicroKernelsAmx;
#elif defined(__aarch64__)
extern const MicroKernels kMicroKernelsNeon, kMicroKernelsNeonBf16;
#endif

const MicroKernels& microKernels(Isa isa, DType dtype) {
#if defined(__x86_64__)
  const bool isPaired = dtype == DType::BFloat16;
  if (isa == Isa::Amx && isPaired) return kMicroKernelsAmx;
  if (isa == Isa::Avx512Bf16 && isPaired) return kMicroKernelsAvx512Bf16;
  if (isa >= Isa::Avx512) return kMicroKernelsAvx512;
  if (isa == Isa::Avx2) return kMicroKernelsAvx2;
#elif defined(__aarch64__)
  if (isa == Isa::NeonBf16 && dtype == DType::BFloat16) return kMicroKernelsNeonBf16;
  if (isa >= Isa::Neon) return kMicroKernelsNeon;
#endif
  (void)isa, (void)dtype;
  return kMicroKernelsScalar;
}

double peakGflops(Isa isa, DType dtype, Pool& pool) {
  const MicroKernels& kernels = microKernels(isa == Isa::Amx ? Isa::Avx512Bf16 : isa, dtype);
  constexpr int64_t kRounds = 200'000;  // a fraction of a millisecond
  double bestRate = 0;
  for (int i = 0; i < 8; ++i) {
    std::atomic<int64_t> operations{0};
    const int64_t start = monotonicNs();
    pool.parallelFor(pool.threads() * 8, [&](int64_t, int) {
      operations.fetch_add(static_cast<int64_t>(kernels.peak(kRounds / 8)), std::memory_order_relaxed);
    });
    bestRate = std::max(bestRate, static_cast<double>(operations.load()) / static_cast<double>(monotonicNs() - start));
  }
  return bestRate;
}

double measureReadBandwidth(int64_t bytes, Isa isa, Pool& pool) {
  constexpr int64_t kChunkElements = 1 << 16;  // floats per task
  const MicroKernels& kernels = microKernels(isa, DType::Float32);
  const int64_t chunks = std::max<int64_t>(1, bytes / (kChunkElements * 4));
  Arena arena;
  float* data = arena.allocate<float>(chunks * kChunkElements);
  pool.parallelFor(chunks,
                   [&](int64_t chunk, int) { std::fill_n(data + chunk * kChunkElements, kChunkElements, 1.0f); });
  double bestRate = 0;
  std::atomic<float> sink{0};
  for (int i = 0; i < 6; ++i) {
    const int64_t start = monotonicNs();
    pool.parallelFor(chunks, [&](int64_t chunk, int) {
      sink.store(kernels.readAll(data + chunk * kChunkElements, kChunkElements), std::memory_order_relaxed);
    });
    bestRate = std::max(bestRate,
                        static_cast<double>(chunks * kChunkElements * 4) / static_cast<double>(monotonicNs() - start));
  }
  return bestRate;
}

}  // namespace mosaic
