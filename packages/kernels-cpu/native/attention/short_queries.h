// Attention of few queries to many keys, as decoding has it: reading the keys is what takes time.
#pragma once

#include "attention/attention.h"
#include "attention/query_panels.h"
#include "micro/micro_kernels.h"

namespace mosaic {

/// Whether `attendShortQueries` is for these.
bool areQueriesShort(const AttendArguments& args, const MicroKernels& kernels);

/// Like `attend`. Panels hold the rows of all heads that share a key head, which is read once for all of them.
void attendShortQueries(const ForwardCall& call, Pool& pool);

}  // namespace mosaic
