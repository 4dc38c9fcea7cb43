#include "simd/check/simd_check.h"
#include "simd/neon.h"

mosaic::check::SimdReport mosaic::check::checkNeon() { return SimdCheck<Neon>().run(); }
