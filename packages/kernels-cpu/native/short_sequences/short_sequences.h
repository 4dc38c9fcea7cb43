// Attention of many short sequences, such as the features of each row of a table: at most sixteen positions, and
// sequences by the thousand.
//
// Lanes are sequences. A panel of queries (attention/query_panels.h) has several times as many lanes as such a sequence
// has rows, and most would be empty; here every lane has work, a score is a product of plain vectors, and nothing is
// summed across lanes.
#pragma once

#include "attention/attention.h"

namespace mosaic {

/// `attend` for short sequences; false if they are none, or too few, and nothing was done. The result does not depend
/// on the number of threads. Throws std::bad_alloc.
bool tryAttendShortSequences(const AttendArguments& args, Isa isa, Pool& pool);

/// `attendBackward` for short sequences, as `tryAttendShortSequences`.
bool tryBackwardShortSequences(const AttendBackwardArguments& args, Isa isa, Pool& pool);

}  // namespace mosaic
