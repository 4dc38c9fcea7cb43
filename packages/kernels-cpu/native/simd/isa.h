// Which instruction set the kernels run on: chosen once, at run time, never compiled in.
//
// Every kernel is one template over a vector trait (scalar.h, avx2.h, avx512.h) and is instantiated in one
// translation unit per instruction set, the only files built with its compiler flags. Such a file must not
// instantiate inline functions that other files share (std:: containers and the like): the linker keeps one copy of
// those, and if it keeps the AVX copy, the scalar path dies on an old machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mosaic {

/// Slowest first. Scalar is plain C++ and runs anywhere; Avx2 needs AVX2, FMA and F16C; Avx512 needs F, BW, VL and DQ.
enum class Isa : uint8_t { Scalar, Avx2, Avx512 };

/// "scalar", "avx2" or "avx512": the spelling of MOSAIC_ISA.
const char* isaName(Isa isa);

/// What this machine runs, slowest first; never empty. Independent of MOSAIC_ISA.
std::vector<Isa> supportedIsas();

struct IsaChoice {
  Isa isa = Isa::Scalar;
  std::string error;  // empty unless `request` is unknown or not supported here
};

/// The instruction set to use. `request` is the value of MOSAIC_ISA: null or empty means the best supported one.
IsaChoice chooseIsa(const char* request);

}  // namespace mosaic
