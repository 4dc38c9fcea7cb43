// A transport over shared memory whose ranks sleep in `poll`, as they do in combination with another transport. Ranks
// of different simulated hosts also communicate over shared memory.
#pragma once

#include <poll.h>

#include <utility>
#include <vector>

#include "mosaic/event_fd.h"
#include "mosaic/failure.h"
#include "shared_memory/transport.h"

namespace mosaic::test {

class PollingTransport {
 public:
  PollingTransport() : table_{}, host_{} {
    table_ = {MOSAIC_TRANSPORT_ABI, MOSAIC_ORDER_HOST, "polling", &host_, nullptr};
    host_.self = this;
    host_.connect = [](void* self, MosaicBootstrap* bootstrap, MosaicFailure* failure) {
      return captureFailure(failure, "connect", [&] { of(self).connect(*bootstrap); });
    };
    host_.interrupt = [](void* self) {
      of(self).wake_.signal();
      of(self).memory_.interrupt();
    };
    host_.send = [](void* self, MosaicMessage* message) { of(self).memory_.send(*message); };
    host_.receive = [](void* self, MosaicMessage* message) { of(self).memory_.receive(*message); };
    host_.reduce = [](void* self, MosaicReduction* reduction) -> int { return of(self).reduce(*reduction); };
    host_.progress = [](void* self) -> int { return of(self).memory_.progress(); };
    host_.wait = [](void* self, int64_t nanoseconds, int (*ready)(void*), void* arg) {
      of(self).wait(nanoseconds, ready, arg);
    };
    host_.lost = [](void* self, uint32_t rank) -> int { return of(self).memory_.isLost(rank); };
    host_.cancel = [](void* self) { of(self).memory_.cancel(); };
    host_.close = [](void* self) { of(self).memory_.close(); };
    host_.free = [](void* self) { delete &of(self); };
  }
  const MosaicTransport* table() const { return &table_; }

 private:
  static PollingTransport& of(void* self) { return *static_cast<PollingTransport*>(self); }

  void connect(MosaicBootstrap& bootstrap) {
    const std::vector<uint32_t> oneHost(bootstrap.size, 0);
    const uint32_t* hosts = std::exchange(bootstrap.hosts, oneHost.data());
    memory_.connect(bootstrap, Wakeup::Descriptor);
    bootstrap.hosts = hosts;
  }

  /// Declines every other reduction, which the engine then computes.
  bool reduce(MosaicReduction& reduction) {
    if (reductions_++ % 2 == 0) return false;
    memory_.reduce(reduction);
    return true;
  }

  void wait(int64_t nanoseconds, int (*ready)(void*), void* arg) {
    wake_.reset();
    memory_.beginPoll();
    pollfd polled[2] = {{wake_.fd(), POLLIN, 0}, {memory_.fd(), POLLIN, 0}};
    const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
    if (!ready(arg)) ppoll(polled, 2, &limit, nullptr);
    memory_.endPoll();
  }

  MosaicTransport table_;
  MosaicHostTransport host_;
  SharedMemory memory_;
  const EventFd wake_;
  uint64_t reductions_ = 0;
};

/// Returns a transport for one rank. Its `free` frees it.
inline const MosaicTransport* openPolling() { return (new PollingTransport)->table(); }

}  // namespace mosaic::test
