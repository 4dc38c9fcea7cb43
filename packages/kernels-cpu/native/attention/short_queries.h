// Attention of few queries to many keys, as in decoding, where the time is dominated by reading the keys.
#pragma once

#include "attention/attention.h"
#include "attention/query_panels.h"
#include "micro/micro_kernels.h"

namespace mosaic {

/// Whether `attendShortQueries` should be used for these arguments.
bool areQueriesShort(const AttendArguments& args, const MicroKernels& kernels);

/// Like `attend`. A panel holds the rows of all heads that share a key head, which is read once for all of them.
void attendShortQueries(const ForwardCall& call, Pool& pool);

}  // namespace mosaic
