#include "simd/check/simd_check.h"
#include "simd/avx512_bf16.h"

mosaic::check::SimdReport mosaic::check::checkAvx512Bf16() { return SimdCheck<Avx512Bf16>().run(); }
