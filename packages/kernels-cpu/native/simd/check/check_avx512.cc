#include "simd/check/simd_check.h"
#include "simd/avx512.h"

mosaic::check::SimdReport mosaic::check::checkAvx512() { return SimdCheck<Avx512>().run(); }
