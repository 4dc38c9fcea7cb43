#include "simd/check/simd_check.h"
#include "simd/scalar.h"

mosaic::check::SimdReport mosaic::check::checkScalar() { return SimdCheck<Scalar>().run(); }
