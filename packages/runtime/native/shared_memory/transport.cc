// The transport over shared memory: each pair of ranks has a ring buffer in each direction (channel.h), into which the
// sender copies a message's header and payload, and out of which the receiver does.
#include "shared_memory/transport.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "mosaic/failure.h"
#include "mosaic/reduction.h"

namespace mosaic {

namespace {

// What a message moves before the others get their turn, and before its peer is notified.
constexpr uint64_t kMaxCopyBytes = 128 << 10;
constexpr uint64_t kReduceBlock = 4096;  // elements

/// Of a message: whether its header has passed through the ring buffer.
uint64_t& headerMoved(MosaicMessage& message) { return message.transport[0]; }

/// Segments of ranks of this process, by the address that rank 0 publishes.
class InProcessSegments {
 public:
  static uint64_t add(const std::shared_ptr<Segment>& segment) {
    const std::lock_guard lock(mutex);
    const auto key = reinterpret_cast<uintptr_t>(segment.get());
    segments[key] = segment;
    std::erase_if(segments, [](const auto& each) { return each.second.expired(); });
    return key;
  }
  static std::shared_ptr<Segment> find(uint64_t key) {
    const std::lock_guard lock(mutex);
    const auto found = segments.find(key);
    return found == segments.end() ? nullptr : found->second.lock();
  }

 private:
  static inline std::mutex mutex;
  static inline std::map<uint64_t, std::weak_ptr<Segment>> segments;
};

// ── connecting

/// What the ranks of this host exchange while they connect.
class HostValues {
 public:
  HostValues(MosaicBootstrap& bootstrap, uint32_t firstRank)
      : bootstrap_(bootstrap), prefix_("shared-memory/" + std::to_string(firstRank) + "/") {}

  void put(const std::string& key, const std::string& value) const {
    bootstrap_.put(&bootstrap_, (prefix_ + key).c_str(), value.data(), value.size());
  }
  std::string get(const std::string& key) const {
    char value[128];
    uint64_t length = 0;
    MosaicFailure failure{};
    if (bootstrap_.get(&bootstrap_, (prefix_ + key).c_str(), value, sizeof value, &length, &failure) != 0) {
      throw Failure(failure);
    }
    return std::string(value, std::min<uint64_t>(length, sizeof value));
  }

 private:
  MosaicBootstrap& bootstrap_;
  const std::string prefix_;
};

/// The first rank creates the segment. Between processes it waits until all have mapped it: it may be the first to end.
std::shared_ptr<Segment> share(const HostValues& values, uint32_t index, uint32_t size, bool isOneProcess) {
  constexpr const char *kKey = "segment", *kComplete = "complete";
  if (index == 0 && isOneProcess) {
    auto segment = Segment::anonymous(size);
    values.put(kKey, std::to_string(InProcessSegments::add(segment)));
    return segment;
  }
  if (index == 0) {
    auto segment = Segment::create(size);
    values.put(kKey, segment->path());
    values.get(kComplete);
    segment->closeFile();
    return segment;
  }
  const std::string value = values.get(kKey);
  if (!isOneProcess) {
    auto segment = Segment::open(value, size);
    if (segment->isComplete()) values.put(kComplete, "");
    return segment;
  }
  if (auto segment = InProcessSegments::find(std::stoull(value))) return segment;
  throw Failure(MOSAIC_FAILURE_PEER_LOST, "connect: the first rank of this host closed while connecting");
}

}  // namespace

void SharedMemory::connect(MosaicBootstrap& bootstrap, Wakeup wakeup) {
  std::vector<pid_t> pids;
  indexOf_.resize(bootstrap.size);
  for (uint32_t rank = 0; rank < bootstrap.size; rank++) {
    if (bootstrap.hosts[rank] != bootstrap.hosts[bootstrap.rank]) continue;
    indexOf_[rank] = static_cast<uint32_t>(ranks_.size());
    ranks_.push_back(rank);
    pids.push_back(bootstrap.pids[rank]);
  }
  const auto size = static_cast<uint32_t>(ranks_.size());
  if (size > kMaxRanks) {
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: the shared-memory transport supports at most " +
                                               std::to_string(kMaxRanks) + " ranks, received " + std::to_string(size));
  }
  index_ = indexOf_[bootstrap.rank];
  matches_ = bootstrap.matches;
  const HostValues values(bootstrap, ranks_[0]);
  if (wakeup == Wakeup::Descriptor) values.put("pipe/" + std::to_string(index_), pipe_.emplace().name());
  const bool isOneProcess = std::all_of(pids.begin(), pids.end(), [](pid_t pid) { return pid == getpid(); });
  segment_ = share(values, index_, size, isOneProcess);
  processes_.emplace(pids);
  sends_.resize(size);
  receives_.resize(size);
  peerPipes_.resize(size);
  for (uint32_t peer = 0; pipe_ && peer < size; peer++) {
    if (peer != index_) peerPipes_[peer] = WakePipePeer::open(values.get("pipe/" + std::to_string(peer)));
  }
  if (wakeup == Wakeup::Futex) page_ = &segment_->page(index_);
}

void SharedMemory::interrupt() {
  if (RankPage* page = page_) page->doorbell.ring();
}

void SharedMemory::close() {
  if (!segment_) return;
  segment_->page(index_).closed = 1;
  for (uint32_t peer = 0; peer < segment_->size(); peer++) {
    if (peer != index_) notify(peer);
  }
}

// ── waiting

void SharedMemory::notify(uint32_t peer) const {
  Doorbell& doorbell = segment_->page(peer).doorbell;
  if (!pipe_) doorbell.ring();
  else if (doorbell.clearIfAsleep() && peerPipes_[peer]) peerPipes_[peer]->signal();
}

void SharedMemory::sleep(int64_t nanoseconds, int (*ready)(void*), void* arg) {
  segment_->page(index_).doorbell.sleep(nanoseconds, [&] { return ready(arg) != 0; });
}

void SharedMemory::beginPoll() {
  pipe_->drain();
  segment_->page(index_).doorbell.setAsleep();
}

void SharedMemory::endPoll() { segment_->page(index_).doorbell.clearAsleep(); }

bool SharedMemory::isLost(uint32_t rank) const {
  const uint32_t peer = indexOf_[rank];
  return !isClosed(peer) && processes_->hasExited(peer) && !isClosed(peer);
}

// ── messages

bool SharedMemory::progress() {
  bool hasProgressed = sends_.forEachActive([this](uint32_t peer) { return sendTo(peer); });
  hasProgressed |= receives_.forEachActive([this](uint32_t peer) { return receiveFrom(peer); });
  if (reduction_) hasProgressed |= computeReduction(*reduction_);
  return hasProgressed;
}

/// Takes the first message off its queue once all of it has moved.
void SharedMemory::popIfDone(Queue& queue) {
  MosaicMessage& message = *queue.front();
  if (message.moved < message.signature.bytes) return;
  message.state = MOSAIC_MESSAGE_DONE;
  queue.pop_front();
}

/// Writes what fits of the messages to a peer into its ring buffer.
bool SharedMemory::sendTo(uint32_t peer) {
  Queue& queue = sends_[peer];
  Channel channel = outgoing(peer);
  uint64_t remainingBytes = kMaxCopyBytes;
  bool hasProgressed = false;
  while (!queue.empty() && remainingBytes > 0) {
    MosaicMessage& message = *queue.front();
    if (message.state != MOSAIC_MESSAGE_PENDING) break;
    if (!headerMoved(message)) {
      if (isClosed(peer)) {
        message.state = MOSAIC_MESSAGE_CLOSED;
        break;
      }
      // A header goes in whole or not at all: the reader may look at it in place.
      if (channel.writable() < sizeof message.signature) break;
      channel.write(&message.signature, sizeof message.signature);
      headerMoved(message) = hasProgressed = true;
    }
    const uint64_t chunkBytes = std::min(remainingBytes, message.signature.bytes - message.moved);
    const uint64_t count = channel.write(message.data + message.moved, chunkBytes);
    message.moved += count;
    remainingBytes -= count;
    hasProgressed |= count > 0;
    if (message.moved < message.signature.bytes && count == 0) break;
    popIfDone(queue);
  }
  if (hasProgressed) notify(peer);
  else if (!queue.empty() && isClosed(peer)) queue.front()->state = MOSAIC_MESSAGE_CLOSED;
  return hasProgressed;
}

/// Reads a header, and compares it. False: it has not come, or is another than expected.
bool SharedMemory::open(MosaicMessage& message, Channel& channel) {
  if (channel.readable() < sizeof message.received) return false;
  channel.read(&message.received, sizeof message.received);
  headerMoved(message) = 1;
  if (matches_(&message.signature, &message.received)) return true;
  message.state = MOSAIC_MESSAGE_MISMATCH;
  return false;
}

/// Reads what a peer has written, into the tensors that its messages are received in.
bool SharedMemory::receiveFrom(uint32_t peer) {
  Queue& queue = receives_[peer];
  // Before reading: what a peer wrote before it closed is then seen.
  const bool closed = isClosed(peer);
  Channel channel = incoming(peer);
  uint64_t remainingBytes = kMaxCopyBytes;
  bool hasProgressed = false, starved = false;
  while (!queue.empty() && remainingBytes > 0) {
    MosaicMessage& message = *queue.front();
    if (message.state != MOSAIC_MESSAGE_PENDING) break;
    if (!headerMoved(message)) {
      starved = !open(message, channel);
      hasProgressed |= headerMoved(message) != 0;
      if (starved) break;
    }
    // Operands of a reduction stay in the ring buffer until those of all ranks are there.
    if (!message.data && message.signature.bytes > 0) {
      starved = channel.readable() == 0;
      break;
    }
    const uint64_t chunkBytes = std::min(remainingBytes, message.signature.bytes - message.moved);
    const uint64_t count = channel.read(message.data + message.moved, chunkBytes);
    message.moved += count;
    remainingBytes -= count;
    hasProgressed |= count > 0;
    starved = message.moved < message.signature.bytes && count == 0;
    if (starved) break;
    popIfDone(queue);
  }
  // A writer that sleeps before a full ring buffer is worth waking only for a good piece of it.
  if (hasProgressed && (queue.empty() || channel.isHalfEmpty())) notify(peer);
  if (starved && closed && queue.front()->state == MOSAIC_MESSAGE_PENDING) queue.front()->state = MOSAIC_MESSAGE_CLOSED;
  return hasProgressed;
}

// ── reductions

void SharedMemory::reduce(MosaicReduction& reduction) {
  for (uint32_t i = 0; i + 1 < reduction.ranks; i++) receive(reduction.messages[i]);
  reduction_ = &reduction;
}

bool SharedMemory::computeReduction(MosaicReduction& r) {
  const auto isSent = [](const MosaicMessage& message) { return message.state == MOSAIC_MESSAGE_DONE; };
  if (r.after_sends && !std::all_of(r.sends, r.sends + r.sends_count, isSent)) return false;
  const auto dtype = static_cast<DType>(r.dtype);
  const auto op = static_cast<ReduceOp>(r.op);
  const auto width = static_cast<uint64_t>(dtypeBytes(dtype));
  alignas(64) float acc[kReduceBlock];
  alignas(64) float bounce[kReduceBlock];
  bool hasProgressed = false;
  while (r.reduced < r.count) {
    uint64_t ready = std::min(kReduceBlock, r.count - r.reduced);
    for (uint32_t i = 0; i + 1 < r.ranks; i++) {
      MosaicMessage& message = r.messages[i];
      const bool isReadable = headerMoved(message) && message.state == MOSAIC_MESSAGE_PENDING;
      ready = std::min(ready, isReadable ? incoming(indexOf_[message.peer]).readable() / width : 0);
    }
    // Whole blocks only, but for the last: a trickle would cost more than it hides.
    if (ready < std::min(kReduceBlock, r.count - r.reduced)) break;
    for (uint32_t i = 0, next = 0; i < r.ranks; i++) {
      const void* operand = r.own + r.reduced * width;
      if (i != r.position) operand = incoming(indexOf_[r.messages[next++].peer]).contiguous(ready * width, bounce);
      reduction::accumulate(acc, operand, ready, dtype, op, i == 0);
    }
    reduction::finish(r.out + r.reduced * width, acc, ready, dtype, op, r.ranks);
    for (uint32_t i = 0; i + 1 < r.ranks; i++) {
      MosaicMessage& message = r.messages[i];
      const uint32_t peer = indexOf_[message.peer];
      Channel channel = incoming(peer);
      channel.consume(ready * width);
      message.moved += ready * width;
      popIfDone(receives_[peer]);
      if (message.state == MOSAIC_MESSAGE_DONE || channel.isHalfEmpty()) notify(peer);
    }
    r.reduced += ready;
    hasProgressed = true;
  }
  if (r.reduced == r.count) reduction_ = nullptr;
  return hasProgressed;
}

void SharedMemory::cancel() {
  sends_.clear();
  receives_.clear();
  reduction_ = nullptr;
}

// ── the table

namespace {

/// The transport of a world on one host.
struct LocalTransport {
  LocalTransport();
  static SharedMemory& of(void* self) { return static_cast<LocalTransport*>(self)->memory; }

  MosaicTransport table;
  MosaicHostTransport host;
  SharedMemory memory;
};

void connectHost(SharedMemory& memory, MosaicBootstrap& bootstrap) {
  const uint32_t* hosts = bootstrap.hosts;
  if (!std::all_of(hosts, hosts + bootstrap.size, [&](uint32_t host) { return host == hosts[0]; })) {
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: the shared-memory transport requires all ranks on one host, "
                                           "received ranks on several hosts; use collectives that span hosts");
  }
  memory.connect(bootstrap, Wakeup::Futex);
}

LocalTransport::LocalTransport() : table{}, host{} {
  table = {MOSAIC_TRANSPORT_ABI, MOSAIC_ORDER_HOST, "shared memory", &host, nullptr};
  host.self = this;
  host.connect = [](void* self, MosaicBootstrap* bootstrap, MosaicFailure* failure) {
    return captureFailure(failure, "connect", [&] { connectHost(of(self), *bootstrap); });
  };
  host.interrupt = [](void* self) { of(self).interrupt(); };
  host.send = [](void* self, MosaicMessage* message) { of(self).send(*message); };
  host.receive = [](void* self, MosaicMessage* message) { of(self).receive(*message); };
  host.reduce = [](void* self, MosaicReduction* reduction) -> int {
    of(self).reduce(*reduction);
    return 1;
  };
  host.progress = [](void* self) -> int { return of(self).progress(); };
  host.wait = [](void* self, int64_t nanoseconds, int (*ready)(void*), void* arg) {
    of(self).sleep(nanoseconds, ready, arg);
  };
  host.lost = [](void* self, uint32_t rank) -> int { return of(self).isLost(rank); };
  host.cancel = [](void* self) { of(self).cancel(); };
  host.close = [](void* self) { of(self).close(); };
  host.free = [](void* self) { delete static_cast<LocalTransport*>(self); };
}

}  // namespace

const MosaicTransport* openSharedMemory() { return &(new LocalTransport)->table; }

}  // namespace mosaic
