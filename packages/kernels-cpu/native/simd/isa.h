// The instruction set of the kernels, chosen once, at run time, never at compile time.
//
// Every kernel is one template over a vector trait (scalar.h, avx2.h, avx512.h, avx512_bf16.h, amx.h, neon.h). It is
// instantiated in one translation unit per instruction set, the only files built with that set's compiler flags. Such a
// file must not instantiate inline functions that other files share (std:: containers and the like). The linker keeps
// one copy of those, and if it keeps the AVX copy, the scalar path crashes on an old machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mosaic {

/// Each contains the one before, within an architecture. Scalar is plain C++ and runs anywhere. Avx2 requires AVX2, FMA
/// and F16C; Avx512 requires F, BW, VL and DQ; Avx512Bf16 adds products of bfloat16 pairs; Amx adds tile registers,
/// AMX-TILE and AMX-BF16. Every 64-bit Arm has Neon; NeonBf16 adds products of pairs, and requires FEAT_FP16 and
/// FEAT_BF16.
enum class Isa : uint8_t { Scalar, Avx2, Avx512, Avx512Bf16, Amx, Neon, NeonBf16 };

/// "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon" or "neon_bf16": the spelling of MOSAIC_ISA.
const char* isaName(Isa isa);

/// Returns the instruction sets that this machine supports, in the order of `Isa`; never empty. Independent of
/// MOSAIC_ISA.
std::vector<Isa> supportedIsas();

struct IsaChoice {
  Isa isa = Isa::Scalar;
  std::string error;  // empty unless `request` is unknown or not supported here
};

/// Returns the instruction set to use. `request` is the value of MOSAIC_ISA; null or empty selects the fastest
/// supported one. That is the last, except on Intel cores that have products of pairs but no tile registers: there a
/// product of pairs takes four times as long as a multiply-add, and converting to float32 is twice as fast.
IsaChoice chooseIsa(const char* request);

}  // namespace mosaic
