// Attention of many short sequences, such as the features of each row of a table: at most sixteen positions per
// sequence, and thousands of sequences.
//
// Lanes are sequences. A panel of queries (attention/query_panels.h) has several times as many lanes as such a sequence
// has rows, and most of them would be empty. Here every lane is used, a score is a product of plain vectors, and there
// are no sums across lanes.
#pragma once

#include "attention/attention.h"

namespace mosaic {

/// Like `attend`, for short sequences. Returns false, without computing anything, if sequences are too long or too few.
/// The result does not depend on the number of threads. Throws std::bad_alloc.
bool tryAttendShortSequences(const AttendArguments& args, Isa isa, Pool& pool);

/// Like `attendBackward`, for short sequences; see `tryAttendShortSequences`.
bool tryBackwardShortSequences(const AttendBackwardArguments& args, Isa isa, Pool& pool);

}  // namespace mosaic
