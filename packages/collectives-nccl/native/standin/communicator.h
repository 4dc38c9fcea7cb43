// A communicator of the stand-in for NCCL.
#pragma once

#include <functional>
#include <mutex>
#include <thread>

#include "nccl/api.h"
#include "standin/region.h"
#include "standin/work.h"

namespace standin {

/// Outlives its handle: what is on a stream still refers to it.
struct Communicator : std::enable_shared_from_this<Communicator> {
  std::shared_ptr<Region> region;
  std::string name;
  uint32_t size = 1, rank = 0;
  bool blocking = true;
  int launches = 0, splits = 0;
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<bool> stopped{false};
  std::atomic<int> launched{0};  // on streams, and not over
  std::thread helper;

  /// Runs on a thread of its own if calls shall not block; `state` is ncclInProgress meanwhile.
  ncclResult_t inBackground(std::function<ncclResult_t()> job);
  /// Waits until `condition`, or until stopped.
  bool await(const std::function<bool()>& condition) const;
  ncclResult_t attach();
  ncclResult_t launch(Work work, void* stream);
  /// Whatever waits gives up; then waits for all that was launched, wherever on its stream it lies.
  void stop();
};

}  // namespace standin

/// What callers of NCCL hold.
struct ncclComm {
  std::shared_ptr<standin::Communicator> of;
};
