// How the processes of one host find one another: rank 0 listens on an abstract socket (a name without a file, gone
// with its process), the others connect, and once all are there each receives the descriptor of the shared memory.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "segment.h"

namespace mosaic {

struct Rendezvous {
  std::string name;  // the same on all ranks of this job, and on no others
  uint32_t rank;
  uint32_t size;
  int64_t timeoutNs;
  const std::atomic<bool>* cancelled;
};

/// Blocks until all ranks are there. Throws Failure that names those who are missing.
std::shared_ptr<Segment> meet(const Rendezvous& options);

}  // namespace mosaic
