// A non-blocking communicator: calls return immediately, and `state` reports when they have completed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mosaic/failure.h"
#include "nccl/api.h"

namespace mosaic::nccl {

/// Limits of NCCL's use of the GPU, and its network. 0 and "" leave the choice to NCCL.
struct Settings {
  int minCtas = 0, maxCtas = 0;
  std::string netName;
};

/// A communicator. If it is neither destroyed nor aborted, NCCL's communicator exists until the process exits.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;

  void init(uint32_t size, const ncclUniqueId& id, uint32_t rank, const Settings& settings);
  /// Collective over this communicator. `child` exists once `state` reports that the split has completed.
  void split(Communicator& child, int color, int key, const Settings& settings);
  ncclComm_t get() const { return comm_; }
  /// Returns ncclInProgress until the last call has completed, or an error once there is one.
  ncclResult_t state();
  /// Whether NCCL has not made it yet because its parent is still splitting.
  bool isPending() const { return parent_ != nullptr; }
  /// Begins to flush. `state` reports when all ranks have flushed.
  void finalize();
  void destroy();
  /// Ends running operations, and waits for all that were launched.
  void abort();

 private:
  ncclComm_t comm_ = nullptr;
  Communicator* parent_ = nullptr;  // while the parent splits, NCCL may write comm_
};

/// Aborts communicators that share a stream, one thread each: aborted in turn, the first would wait for kernels queued
/// behind those of a communicator not yet aborted. (NCCL 2.22 and newer could do this in one group.) `enter` makes the
/// device's context current on a thread.
void abortConcurrently(const std::vector<Communicator*>& communicators, const std::function<void()>& enter);

/// Whether the result is no error.
inline bool isSuccessOrInProgress(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/// Converts an error of NCCL: a remote error is PEER_LOST, all others are DEVICE.
Failure toFailure(ncclResult_t result, const Communicator& communicator);

/// Throws `toFailure(result)` unless the result is success or in progress.
void check(ncclResult_t result, const Communicator& communicator);

}  // namespace mosaic::nccl
