#include "simd/isa.h"

namespace mosaic {
namespace {

bool supports(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return isa == Isa::Scalar || (isa == Isa::Avx2 && avx2) || (isa == Isa::Avx512 && avx512);
#else
  return isa == Isa::Scalar;
#endif
}

std::string listed(const std::vector<Isa>& isas) {
  std::string text;
  for (Isa isa : isas) text += (text.empty() ? "" : ", ") + std::string(isaName(isa));
  return text;
}

}  // namespace

const char* isaName(Isa isa) { return isa == Isa::Avx512 ? "avx512" : isa == Isa::Avx2 ? "avx2" : "scalar"; }

std::vector<Isa> supportedIsas() {
  std::vector<Isa> found;
  for (Isa isa : {Isa::Scalar, Isa::Avx2, Isa::Avx512}) {
    if (supports(isa)) found.push_back(isa);
  }
  return found;
}

IsaChoice chooseIsa(const char* request) {
  const std::vector<Isa> available = supportedIsas();
  if (request == nullptr || *request == '\0') return {available.back(), ""};
  for (Isa isa : available) {
    if (std::string(request) == isaName(isa)) return {isa, ""};
  }
  return {Isa::Scalar, "MOSAIC_ISA: expected one of " + listed(available) + " (what this machine runs), received \"" +
                           request + "\"; unset it to use the fastest."};
}

}  // namespace mosaic
