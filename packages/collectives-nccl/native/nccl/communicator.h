// One communicator, non-blocking: calls return at once, and `state` tells when they have had their effect.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mosaic/failure.h"
#include "nccl/library.h"

namespace mosaic::nccl {

/// How much of the GPU NCCL may take; 0 and "" leave it to NCCL.
struct Settings {
  int minCtas = 0, maxCtas = 0;
  std::string network;
};

class Communicator {
 public:
  Communicator() = default;
  /// Whoever has neither destroyed nor aborted it leaves it to the end of the process.
  Communicator(Communicator&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }

  void begin(uint32_t size, const ncclUniqueId& id, uint32_t rank, const Settings& settings);
  /// Collective over this communicator; `part` is to be waited for, then this.
  void split(Communicator& part, int color, int key, const Settings& settings);
  bool open() const { return comm_ != nullptr; }
  ncclComm_t get() const { return comm_; }
  /// ncclInProgress until what was called last has had its effect; an error once there is one.
  ncclResult_t state() const;
  /// Begins to flush; `state` tells when all have.
  void finalize();
  void destroy();
  /// Ends what runs, and waits for all that was launched; of several that share a stream, by AbortTogether.
  void abort();

 private:
  ncclComm_t comm_ = nullptr;
};

/// Aborts communicators, each on a thread, and waits for all at its end. One after the other, the first would wait for
/// what it has on the stream behind another's that nobody has ended yet; only since 2.22 would a group of NCCL's do.
class AbortTogether {
 public:
  /// `enter` makes the device's context a thread's.
  explicit AbortTogether(std::function<void()> enter) : enter_(std::move(enter)) {}
  ~AbortTogether();
  AbortTogether(const AbortTogether&) = delete;
  void add(Communicator& communicator);

 private:
  std::function<void()> enter_;
  std::vector<std::thread> threads_;
};

/// Nothing to complain of, so far.
inline bool sound(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/// What NCCL's error means to a program: a rank that cannot be reached is lost, all else is the device's.
Failure failureOf(ncclResult_t result, const Communicator& communicator, const std::string& where);

/// Throws it, unless the result is sound.
void check(ncclResult_t result, const Communicator& communicator, const std::string& where);

}  // namespace mosaic::nccl
