#include "simd/isa.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace mosaic {
namespace {

#if defined(__aarch64__)
bool hasBf16() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0 && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
  return false;
#endif
}
#endif

#if defined(__x86_64__)
/// CPUID.7.0:EDX and CPUID.7.1:EAX. Current compilers have no names for all of their bits.
struct ExtendedFeatures {
  uint32_t edx70 = 0, eax71 = 0;
};

ExtendedFeatures extendedFeatures() {
  uint32_t eax = 7, ebx, ecx = 0, edx;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  ExtendedFeatures features{edx, 0};
  if (eax < 1) return features;
  eax = 7, ecx = 1;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  features.eax71 = eax;
  return features;
}

/// Requests permission from Linux to use the tile registers; returns whether it is granted.
bool requestTileRegisters() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool isGranted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return isGranted;
#else
  return false;
#endif
}
#endif

bool supports(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool hasAvx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool hasAvx512 = hasAvx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool hasBf16Dot = hasAvx512 && (extendedFeatures().eax71 & 1u << 5) != 0;
  constexpr uint32_t kTileFeatures = 1u << 24 | 1u << 22;  // AMX-TILE, AMX-BF16
  switch (isa) {
    case Isa::Scalar: return true;
    case Isa::Avx2: return hasAvx2;
    case Isa::Avx512: return hasAvx512;
    case Isa::Avx512Bf16: return hasBf16Dot;
    case Isa::Amx:
      return hasBf16Dot && (extendedFeatures().edx70 & kTileFeatures) == kTileFeatures && requestTileRegisters();
    default: return false;
  }
#elif defined(__aarch64__)
  return isa == Isa::Scalar || isa == Isa::Neon || (isa == Isa::NeonBf16 && hasBf16());
#else
  return isa == Isa::Scalar;
#endif
}

/// Whether products of pairs are as fast as multiply-adds.
bool hasFastBf16Dot() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

std::string joinNames(const std::vector<Isa>& isas) {
  std::string text;
  for (Isa isa : isas) text += (text.empty() ? "" : ", ") + std::string(isaName(isa));
  return text;
}

}  // namespace

const char* isaName(Isa isa) {
  switch (isa) {
    case Isa::Scalar: return "scalar";
    case Isa::Avx2: return "avx2";
    case Isa::Avx512: return "avx512";
    case Isa::Avx512Bf16: return "avx512_bf16";
    case Isa::Amx: return "amx";
    case Isa::Neon: return "neon";
    case Isa::NeonBf16: return "neon_bf16";
  }
  return "";
}

std::vector<Isa> supportedIsas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx, Isa::Neon, Isa::NeonBf16}) {
    if (supports(isa)) isas.push_back(isa);
  }
  return isas;
}

IsaChoice chooseIsa(const char* request) {
  const std::vector<Isa> isas = supportedIsas();
  if (request == nullptr || *request == '\0') {
    const bool hasSlowBf16Dot = isas.back() == Isa::Avx512Bf16 && !hasFastBf16Dot();
    return {hasSlowBf16Dot ? Isa::Avx512 : isas.back(), ""};
  }
  for (Isa isa : isas) {
    if (std::string(request) == isaName(isa)) return {isa, ""};
  }
  return {Isa::Scalar, "MOSAIC_ISA: expected one of " + joinNames(isas) + " (supported on this machine), received \"" +
                           request + "\"; unset it to use the fastest"};
}

}  // namespace mosaic
