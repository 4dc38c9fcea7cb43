// A communicator of the emulated NCCL.
#pragma once

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "emulation/sockets.h"
#include "emulation/transfer.h"
#include "nccl/api.h"

namespace emulated_nccl {

// Settings of the emulated NCCL, which tests set by environment variables.

inline std::string getSetting(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

/// Returns the version in the format of ncclGetVersion.
inline int configuredVersion() {
  const std::string text = getSetting("MOSAIC_EMULATED_NCCL_VERSION");
  return text.empty() ? 22703 : std::atoi(text.c_str());
}
/// Whether the operation, "init" or "split", must never complete.
inline bool isHangConfigured(const char* operation) { return getSetting("MOSAIC_EMULATED_NCCL_HANG") == operation; }
/// Returns the number n of the launch of each communicator that must never complete; 0: none.
inline int hangingLaunchNumber() { return std::atoi(getSetting("MOSAIC_EMULATED_NCCL_HANG").c_str()); }
/// Returns the number n of the launch of each communicator that must end in an asynchronous error; 0: none. "5" is a
/// remote error, "5:system" a system error.
inline int failingLaunchNumber() { return std::atoi(getSetting("MOSAIC_EMULATED_NCCL_ERROR").c_str()); }
inline bool isSystemErrorConfigured() { return getSetting("MOSAIC_EMULATED_NCCL_ERROR").ends_with(":system"); }

/// A communicator. It may outlive its handle, because launches on a stream still refer to it.
struct Communicator : std::enable_shared_from_this<Communicator> {
  std::shared_ptr<Region> region;
  std::shared_ptr<Listener> listener;
  std::vector<Endpoint> endpoints;                   // by rank
  std::vector<std::array<int, 2>> connections;       // by rank: one for messages, one for collectives; -1 within a host
  std::string name;
  uint32_t size = 1, rank = 0;
  bool isBlocking = true;
  int launchCount = 0, splitCount = 0;
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<bool> isStopped{false};
  std::atomic<int> pendingLaunchCount{0};  // launches on streams that have not completed
  std::thread asyncThread;

  /// Runs `job`, on a separate thread if the communicator is non-blocking. `state` is ncclInProgress meanwhile.
  ncclResult_t runAsync(std::function<ncclResult_t()> job);
  /// Waits until `condition` is true. Returns false if stopped before.
  bool waitUntil(const std::function<bool()>& condition) const;
  ~Communicator();
  ncclResult_t attach();
  /// Connects this rank with those of other hosts. Returns false if stopped before.
  bool connectPeers();
  Lane getLane(uint32_t from, uint32_t to, bool isCollective) const;
  ncclResult_t launch(Work work, void* stream);
  /// Ends all waits, then waits for all launches, including those that are still queued on their stream.
  void stop();
};

}  // namespace emulated_nccl

/// The handle that callers of NCCL hold.
struct ncclComm {
  std::shared_ptr<emulated_nccl::Communicator> communicator;
};
