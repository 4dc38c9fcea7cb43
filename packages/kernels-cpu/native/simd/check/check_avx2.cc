#include "simd/check/simd_check.h"
#include "simd/avx2.h"

mosaic::check::SimdReport mosaic::check::checkAvx2() { return SimdCheck<Avx2>().run(); }
