// Checks of the foundations of the kernels: vector traits, the choice of instruction set, the pool, and merging states.
#pragma once
namespace mosaic::check {

/// Returns the number of failures and prints each of them.
int checkBasics();

// Percent of the FMA peak. Both are measured in turns in one process, because only their ratio is meaningful on a
// shared machine.

/// Arguments: [threads [isa [length…]]].
int bench(int argc, char** argv);

}  // namespace mosaic::check
