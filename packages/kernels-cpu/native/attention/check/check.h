// Checks of what the kernels stand on: vector traits, the choice of instruction set, the pool, and merging states.
#pragma once
namespace mosaic::check {

/// Number of failures; each is printed.
int checkBasics();

// Percent of the FMA peak, both measured in turns in one process: only the ratio means anything on a shared machine.

/// Arguments: [threads [isa [length…]]].
int bench(int argc, char** argv);

}  // namespace mosaic::check
