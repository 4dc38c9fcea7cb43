// Combines two transports: shared memory for messages between ranks of one host, and UCX for messages between hosts. A
// waiting rank sleeps in one `poll` for both.
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
  static Transport& fromSelf(void* self) { return *static_cast<Transport*>(self); }

  void connect(MosaicBootstrap& bootstrap);
  bool isLocal(uint32_t rank) const { return isLocal_[rank]; }
  bool reduce(MosaicReduction& reduction);
  bool progress();
  void wait(int64_t nanoseconds, int (*ready)(void*), void* arg);
  bool isLost(uint32_t rank) const { return isLocal(rank) ? sharedMemory_.isLost(rank) : remoteMessages_.isLost(rank); }

  MosaicTransport table_;
  MosaicHostTransport hostTable_;
  /// By rank: whether it is on this rank's host.
  std::vector<bool> isLocal_;
  bool isSingleHost_ = false;
  SharedMemory sharedMemory_;  // connected unless this rank is alone on its host
  Messages remoteMessages_;    // with ranks of other hosts
};

void Transport::connect(MosaicBootstrap& bootstrap) {
  for (uint32_t rank = 0; rank < bootstrap.size; rank++) {
    isLocal_.push_back(bootstrap.hosts[rank] == bootstrap.hosts[bootstrap.rank]);
  }
  const auto ranksOnHost = std::count(isLocal_.begin(), isLocal_.end(), true);
  isSingleHost_ = ranksOnHost == bootstrap.size;
  if (isSingleHost_ || ranksOnHost > 1)
    sharedMemory_.connect(bootstrap, isSingleHost_ ? Wakeup::Futex : Wakeup::Descriptor);
  remoteMessages_.connect(bootstrap);
}

/// Shared memory reduces operands where they arrive. UCX does not, so reductions over several hosts are left to the
/// engine.
bool Transport::reduce(MosaicReduction& reduction) {
  const auto isLocalMessage = [this](const MosaicMessage& message) { return isLocal(message.peer); };
  if (!std::all_of(reduction.messages, reduction.messages + reduction.ranks - 1, isLocalMessage)) return false;
  if (!sharedMemory_.isConnected()) return false;
  sharedMemory_.reduce(reduction);
  return true;
}

bool Transport::progress() {
  const bool hasProgressed = sharedMemory_.isConnected() && sharedMemory_.progress();
  return remoteMessages_.progress() || hasProgressed;
}

void Transport::wait(int64_t nanoseconds, int (*ready)(void*), void* arg) {
  if (isSingleHost_) return sharedMemory_.sleep(nanoseconds, ready, arg);
  if (!sharedMemory_.isConnected()) return remoteMessages_.wait(nanoseconds, ready, arg);
  sharedMemory_.beginPoll();
  remoteMessages_.wait(nanoseconds, ready, arg, sharedMemory_.fd());
  sharedMemory_.endPoll();
}

// ── the table

Transport::Transport(const Settings& settings) : table_{}, hostTable_{}, remoteMessages_(settings) {
  table_ = {MOSAIC_TRANSPORT_ABI, MOSAIC_ORDER_HOST, "ucx", &hostTable_, nullptr};
  hostTable_.self = this;
  hostTable_.connect = [](void* self, MosaicBootstrap* bootstrap, MosaicFailure* failure) {
    return captureFailure(failure, "connect", [&] { fromSelf(self).connect(*bootstrap); });
  };
  hostTable_.interrupt = [](void* self) {
    fromSelf(self).remoteMessages_.interrupt();
    fromSelf(self).sharedMemory_.interrupt();
  };
  hostTable_.send = [](void* self, MosaicMessage* message) {
    if (fromSelf(self).isLocal(message->peer)) fromSelf(self).sharedMemory_.send(*message);
    else fromSelf(self).remoteMessages_.send(*message);
  };
  hostTable_.receive = [](void* self, MosaicMessage* message) {
    if (fromSelf(self).isLocal(message->peer)) fromSelf(self).sharedMemory_.receive(*message);
    else fromSelf(self).remoteMessages_.receive(*message);
  };
  hostTable_.reduce = [](void* self, MosaicReduction* reduction) -> int { return fromSelf(self).reduce(*reduction); };
  hostTable_.progress = [](void* self) -> int { return fromSelf(self).progress(); };
  hostTable_.wait = [](void* self, int64_t nanoseconds, int (*ready)(void*), void* arg) {
    fromSelf(self).wait(nanoseconds, ready, arg);
  };
  hostTable_.lost = [](void* self, uint32_t rank) -> int { return fromSelf(self).isLost(rank); };
  hostTable_.cancel = [](void* self) {
    fromSelf(self).sharedMemory_.cancel();
    fromSelf(self).remoteMessages_.abandon();
  };
  hostTable_.close = [](void* self) {
    fromSelf(self).sharedMemory_.close();
    fromSelf(self).remoteMessages_.close();
  };
  hostTable_.free = [](void* self) {
    // Requests that UCX could not finish refer to this object, which is then leaked on purpose.
    if (!fromSelf(self).remoteMessages_.isInUse()) delete &fromSelf(self);
  };
}

}  // namespace

const MosaicTransport* openTransport(const Settings& settings) {
  library();  // throws if none was loaded
  return (new Transport(settings))->table();
}

}  // namespace mosaic::ucx
