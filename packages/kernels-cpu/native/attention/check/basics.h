// Checks of what the kernels stand on: vector traits, the choice of instruction set, the pool, and merging states.
#pragma once

namespace mosaic::check {

/// Number of failures; each is printed.
int checkBasics();

}  // namespace mosaic::check
