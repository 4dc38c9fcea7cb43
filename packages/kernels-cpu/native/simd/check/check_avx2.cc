#include "simd/check/check_of.h"
#include "simd/avx2.h"

mosaic::check::SimdReport mosaic::check::checkAvx2() { return SimdCheck<Avx2>().run(); }
