#include "simd/check/check_of.h"
#include "simd/avx512.h"

mosaic::check::SimdReport mosaic::check::checkAvx512() { return SimdCheck<Avx512>().run(); }
