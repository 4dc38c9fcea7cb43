// One communicator, non-blocking: calls return at once, and `state` reports when they have had their effect.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mosaic/failure.h"
#include "nccl/api.h"

namespace mosaic::nccl {

/// How much of the GPU NCCL may take; 0 and "" leave it to NCCL.
struct Settings {
  int minCtas = 0, maxCtas = 0;
  std::string netName;
};

/// One that is neither destroyed nor aborted lives until the process ends.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;

  void init(uint32_t size, const ncclUniqueId& id, uint32_t rank, const Settings& settings);
  /// Collective over this communicator; `child` exists once this has had its effect.
  void split(Communicator& child, int color, int key, const Settings& settings);
  ncclComm_t get() const { return comm_; }
  /// ncclInProgress until what was called last has had its effect; an error once there is one.
  ncclResult_t state();
  /// NCCL has not made it yet: its parent still splits.
  bool isPending() const { return parent_ != nullptr; }
  /// Begins to flush; `state` reports when all ranks have.
  void finalize();
  void destroy();
  /// Ends what runs, and waits for all that was launched.
  void abort();

 private:
  ncclComm_t comm_ = nullptr;
  Communicator* parent_ = nullptr;  // while it splits, NCCL may write comm_
};

/// Aborts several communicators on one stream, each on a thread, for the first would wait for what it has on the stream
/// behind another's that nothing has ended yet; only since 2.22 would one group of NCCL's do. `enter` makes the
/// device's context a thread's.
void abortConcurrently(const std::vector<Communicator*>& communicators, const std::function<void()>& enter);

/// Nothing is wrong, so far.
inline bool isSuccessOrInProgress(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/// What NCCL's error means to a program: a remote error is a lost rank, all else the device's.
Failure toFailure(ncclResult_t result, const Communicator& communicator);

/// Throws it, unless the result is sound.
void check(ncclResult_t result, const Communicator& communicator);

}  // namespace mosaic::nccl
