// Percent of the FMA peak, both measured in turns in one process: only the ratio means anything on a shared machine.
#pragma once

namespace mosaic::check {

/// Arguments: [threads [isa [length…]]].
int bench(int argc, char** argv);

}  // namespace mosaic::check
