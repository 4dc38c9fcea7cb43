// A communicator of the stand-in for NCCL.
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

// What tests set of the stand-in for NCCL, by environment variables.

inline std::string getSetting(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

/// As ncclGetVersion gives it.
inline int configuredVersion() {
  const std::string text = getSetting("MOSAIC_EMULATED_NCCL_VERSION");
  return text.empty() ? 22703 : std::atoi(text.c_str());
}
/// "init" or "split": that never completes.
inline bool isHangConfigured(const char* operation) { return getSetting("MOSAIC_EMULATED_NCCL_HANG") == operation; }
/// The n-th launch of a communicator never completes; 0: none.
inline int hangingLaunchNumber() { return std::atoi(getSetting("MOSAIC_EMULATED_NCCL_HANG").c_str()); }
/// "5" or "5:system": the n-th launch of a communicator ends in an asynchronous error, a remote one or the system's; 0:
/// none.
inline int failingLaunchNumber() { return std::atoi(getSetting("MOSAIC_EMULATED_NCCL_ERROR").c_str()); }
inline bool isSystemErrorConfigured() { return getSetting("MOSAIC_EMULATED_NCCL_ERROR").ends_with(":system"); }

/// Outlives its handle: what is on a stream still refers to it.
struct Communicator : std::enable_shared_from_this<Communicator> {
  std::shared_ptr<Region> region;
  std::shared_ptr<Listener> listener;
  std::vector<Endpoint> endpoints;                   // by rank
  std::vector<std::array<int, 2>> connections;       // by rank: for messages, for collectives; -1 within a host
  std::string name;
  uint32_t size = 1, rank = 0;
  bool isBlocking = true;
  int launchCount = 0, splitCount = 0;
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<bool> isStopped{false};
  std::atomic<int> pendingLaunchCount{0};  // on streams, and not over
  std::thread asyncThread;

  /// Runs on a thread of its own if calls shall not block; `state` is ncclInProgress meanwhile.
  ncclResult_t runAsync(std::function<ncclResult_t()> job);
  /// Waits until `condition`, or until stopped.
  bool waitUntil(const std::function<bool()>& condition) const;
  ~Communicator();
  ncclResult_t attach();
  /// Connects this rank with those of other hosts; false if stopped before.
  bool connectPeers();
  Lane getLane(uint32_t from, uint32_t to, bool isCollective) const;
  ncclResult_t launch(Work work, void* stream);
  /// Whatever waits gives up; then waits for all that was launched, wherever on its stream it lies.
  void stop();
};

}  // namespace emulated_nccl

/// What callers of NCCL hold.
struct ncclComm {
  std::shared_ptr<emulated_nccl::Communicator> communicator;
};
