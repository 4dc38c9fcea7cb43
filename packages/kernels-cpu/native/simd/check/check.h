// Checks of every primitive of a vector trait against plain arithmetic on its lanes.
#pragma once

namespace mosaic::check {

struct SimdReport {
  int failures = 0;
  char firstFailure[128] = "";
  double maxExp2Error = 0;  // largest relative error
};

SimdReport checkScalar();
SimdReport checkAvx2();
SimdReport checkAvx512();
SimdReport checkAvx512Bf16();
SimdReport checkNeon();
SimdReport checkNeonBf16();

}  // namespace mosaic::check
