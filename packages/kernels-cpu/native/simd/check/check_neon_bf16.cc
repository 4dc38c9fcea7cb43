#include "simd/check/simd_check.h"
#include "simd/neon.h"

mosaic::check::SimdReport mosaic::check::checkNeonBf16() { return SimdCheck<NeonBf16>().run(); }
