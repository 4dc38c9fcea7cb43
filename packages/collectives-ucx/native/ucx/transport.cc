// A transport of two: messages between ranks of one host go through shared memory, those between hosts over UCX. A rank
// that waits sleeps in one poll for both.
#include "ucx/transport.h"

#include <algorithm>
#include <vector>

#include "mosaic/failure.h"
#include "shared_memory/transport.h"
#include "ucx/messages.h"

namespace mosaic::ucx {

namespace {

class Transport {
 public:
  explicit Transport(const Settings& settings);
  const MosaicTransport* table() const { return &table_; }

 private:
  static Transport& of(void* self) { return *static_cast<Transport*>(self); }

  void connect(MosaicBootstrap& bootstrap);
  bool isLocal(uint32_t rank) const { return isLocal_[rank]; }
  bool reduce(MosaicReduction& reduction);
  bool progress();
  void wait(int64_t nanoseconds, int (*ready)(void*), void* arg);
  bool isLost(uint32_t rank) const { return isLocal(rank) ? memory_.isLost(rank) : messages_.isLost(rank); }

  MosaicTransport table_;
  MosaicHostTransport host_;
  /// By rank: on this rank's host.
  std::vector<bool> isLocal_;
  bool isSingleHost_ = false;
  SharedMemory memory_;  // unless this rank is alone on its host
  Messages messages_;    // to all others
};

void Transport::connect(MosaicBootstrap& bootstrap) {
  for (uint32_t rank = 0; rank < bootstrap.size; rank++) {
    isLocal_.push_back(bootstrap.hosts[rank] == bootstrap.hosts[bootstrap.rank]);
  }
  const auto ranksOnHost = std::count(isLocal_.begin(), isLocal_.end(), true);
  isSingleHost_ = ranksOnHost == bootstrap.size;
  if (isSingleHost_ || ranksOnHost > 1) memory_.connect(bootstrap, isSingleHost_ ? Wakeup::Futex : Wakeup::Descriptor);
  messages_.connect(bootstrap);
}

/// Shared memory reduces where operands arrive, UCX does not: a group of several hosts leaves it to the engine.
bool Transport::reduce(MosaicReduction& reduction) {
  const auto isOnThisHost = [this](const MosaicMessage& message) { return isLocal(message.peer); };
  if (!std::all_of(reduction.messages, reduction.messages + reduction.ranks - 1, isOnThisHost)) return false;
  if (!memory_.isConnected()) return false;
  memory_.reduce(reduction);
  return true;
}

bool Transport::progress() {
  const bool hasProgressed = memory_.isConnected() && memory_.progress();
  return messages_.progress() || hasProgressed;
}

void Transport::wait(int64_t nanoseconds, int (*ready)(void*), void* arg) {
  if (isSingleHost_) return memory_.sleep(nanoseconds, ready, arg);
  if (!memory_.isConnected()) return messages_.wait(nanoseconds, ready, arg);
  memory_.beginPoll();
  messages_.wait(nanoseconds, ready, arg, memory_.fd());
  memory_.endPoll();
}

// ── the table

Transport::Transport(const Settings& settings) : table_{}, host_{}, messages_(settings) {
  table_ = {MOSAIC_TRANSPORT_ABI, MOSAIC_ORDER_HOST, "ucx", &host_, nullptr};
  host_.self = this;
  host_.connect = [](void* self, MosaicBootstrap* bootstrap, MosaicFailure* failure) {
    return captureFailure(failure, "connect", [&] { of(self).connect(*bootstrap); });
  };
  host_.interrupt = [](void* self) {
    of(self).messages_.interrupt();
    of(self).memory_.interrupt();
  };
  host_.send = [](void* self, MosaicMessage* message) {
    if (of(self).isLocal(message->peer)) of(self).memory_.send(*message);
    else of(self).messages_.send(*message);
  };
  host_.receive = [](void* self, MosaicMessage* message) {
    if (of(self).isLocal(message->peer)) of(self).memory_.receive(*message);
    else of(self).messages_.receive(*message);
  };
  host_.reduce = [](void* self, MosaicReduction* reduction) -> int { return of(self).reduce(*reduction); };
  host_.progress = [](void* self) -> int { return of(self).progress(); };
  host_.wait = [](void* self, int64_t nanoseconds, int (*ready)(void*), void* arg) {
    of(self).wait(nanoseconds, ready, arg);
  };
  host_.lost = [](void* self, uint32_t rank) -> int { return of(self).isLost(rank); };
  host_.cancel = [](void* self) {
    of(self).memory_.cancel();
    of(self).messages_.abandon();
  };
  host_.close = [](void* self) {
    of(self).memory_.close();
    of(self).messages_.close();
  };
  host_.free = [](void* self) {
    // What UCX was stopped in the middle of refers to this for ever.
    if (!of(self).messages_.isInUse()) delete &of(self);
  };
}

}  // namespace

const MosaicTransport* openTransport(const Settings& settings) {
  library();  // throws if none was loaded
  return (new Transport(settings))->table();
}

}  // namespace mosaic::ucx
