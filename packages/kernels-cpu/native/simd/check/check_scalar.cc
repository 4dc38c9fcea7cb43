#include "simd/check/check_of.h"
#include "simd/scalar.h"

mosaic::check::SimdReport mosaic::check::checkScalar() { return SimdCheck<Scalar>().run(); }
