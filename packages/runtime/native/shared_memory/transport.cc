// The transport over shared memory. Each pair of ranks has a ring buffer in each direction (channel.h). The sender
// copies a message's header and payload into it, and the receiver copies them out of it.
#include "shared_memory/transport.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "mosaic/failure.h"
#include "mosaic/reduction.h"

namespace mosaic {

namespace {

// Maximum bytes that a peer's messages transfer before those of other peers continue, and before the peer is notified.
constexpr uint64_t kMaxCopyBytes = 128 << 10;
constexpr uint64_t kReduceBlockElements = 4096;  // elements

/// The flag of a message that its header was written to or read from the ring buffer.
uint64_t& headerMovedFlag(MosaicMessage& message) { return message.transport[0]; }

/// Segments for ranks of this process, by the address that the first rank publishes.
class InProcessSegments {
 public:
  static uint64_t add(const std::shared_ptr<Segment>& segment) {
    const std::lock_guard lock(mutex);
    const auto key = reinterpret_cast<uintptr_t>(segment.get());
    segments[key] = segment;
    std::erase_if(segments, [](const auto& entry) { return entry.second.expired(); });
    return key;
  }
  static std::shared_ptr<Segment> find(uint64_t key) {
    const std::lock_guard lock(mutex);
    const auto entry = segments.find(key);
    return entry == segments.end() ? nullptr : entry->second.lock();
  }

 private:
  static inline std::mutex mutex;
  static inline std::map<uint64_t, std::weak_ptr<Segment>> segments;
};

// ── connecting

/// Values that the ranks of this host exchange while they connect.
class HostStore {
 public:
  HostStore(MosaicBootstrap& bootstrap, uint32_t firstRank)
      : bootstrap_(bootstrap), prefix_("shared-memory/" + std::to_string(firstRank) + "/") {}

  void put(const std::string& key, const std::string& value) const {
    MosaicFailure failure{};
    if (bootstrap_.put(&bootstrap_, (prefix_ + key).c_str(), value.data(), value.size(), &failure) != 0) {
      throw Failure(failure);
    }
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

/// The first rank creates the segment. If there are several processes, it waits until all have mapped the segment,
/// because its process may be the first to exit.
std::shared_ptr<Segment> createOrOpenSegment(const HostStore& store, uint32_t localRank, uint32_t size,
                                             bool isSingleProcess) {
  constexpr const char *kSegmentKey = "segment", *kCompleteKey = "complete";
  if (localRank == 0 && isSingleProcess) {
    auto segment = Segment::createAnonymous(size);
    store.put(kSegmentKey, std::to_string(InProcessSegments::add(segment)));
    return segment;
  }
  if (localRank == 0) {
    auto segment = Segment::create(size);
    store.put(kSegmentKey, segment->path());
    store.get(kCompleteKey);
    segment->closeFile();
    return segment;
  }
  const std::string value = store.get(kSegmentKey);
  if (!isSingleProcess) {
    auto segment = Segment::open(value, size);
    if (segment->isMappedByAll()) store.put(kCompleteKey, "");
    return segment;
  }
  if (auto segment = InProcessSegments::find(std::stoull(value))) return segment;
  throw Failure(MOSAIC_FAILURE_PEER_LOST, "connect: the first rank of this host closed while connecting");
}

}  // namespace

void SharedMemory::connect(MosaicBootstrap& bootstrap, Wakeup wakeup) {
  std::vector<pid_t> pids;
  localRanks_.resize(bootstrap.size);
  for (uint32_t rank = 0; rank < bootstrap.size; rank++) {
    if (bootstrap.hosts[rank] != bootstrap.hosts[bootstrap.rank]) continue;
    localRanks_[rank] = static_cast<uint32_t>(ranks_.size());
    ranks_.push_back(rank);
    pids.push_back(bootstrap.pids[rank]);
  }
  const auto size = static_cast<uint32_t>(ranks_.size());
  if (size > kMaxRanks) {
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: the shared-memory transport supports at most " +
                                               std::to_string(kMaxRanks) + " ranks, received " + std::to_string(size));
  }
  localRank_ = localRanks_[bootstrap.rank];
  matches_ = bootstrap.matches;
  const HostStore store(bootstrap, ranks_[0]);
  if (wakeup == Wakeup::Descriptor) store.put("pipe/" + std::to_string(localRank_), pipe_.emplace().name());
  const bool isSingleProcess = std::all_of(pids.begin(), pids.end(), [](pid_t pid) { return pid == getpid(); });
  segment_ = createOrOpenSegment(store, localRank_, size, isSingleProcess);
  processes_.emplace(pids);
  sends_.resize(size);
  receives_.resize(size);
  peerPipes_.resize(size);
  for (uint32_t peer = 0; pipe_ && peer < size; peer++) {
    if (peer != localRank_) peerPipes_[peer] = WakePipePeer::open(store.get("pipe/" + std::to_string(peer)));
  }
  if (wakeup == Wakeup::Futex) page_ = &segment_->page(localRank_);
}

void SharedMemory::interrupt() {
  if (RankPage* page = page_) page->doorbell.ring();
}

void SharedMemory::close() {
  if (!segment_) return;
  segment_->page(localRank_).isClosed = 1;
  for (uint32_t peer = 0; peer < segment_->size(); peer++) {
    if (peer != localRank_) notify(peer);
  }
}

// ── waiting

void SharedMemory::notify(uint32_t peer) const {
  Doorbell& doorbell = segment_->page(peer).doorbell;
  if (!pipe_) doorbell.ring();
  else if (doorbell.clearIfAsleep() && peerPipes_[peer]) peerPipes_[peer]->signal();
}

void SharedMemory::sleep(int64_t nanoseconds, int (*ready)(void*), void* arg) {
  segment_->page(localRank_).doorbell.sleep(nanoseconds, [&] { return ready(arg) != 0; });
}

void SharedMemory::beginPoll() {
  pipe_->drain();
  segment_->page(localRank_).doorbell.setAsleep();
}

void SharedMemory::endPoll() { segment_->page(localRank_).doorbell.clearAsleep(); }

bool SharedMemory::isLost(uint32_t rank) const {
  const uint32_t peer = localRanks_[rank];
  return !isClosed(peer) && processes_->hasExited(peer) && !isClosed(peer);
}

// ── messages

bool SharedMemory::progress() {
  bool hasProgressed = sends_.progressActivePeers([this](uint32_t peer) { return sendTo(peer); });
  hasProgressed |= receives_.progressActivePeers([this](uint32_t peer) { return receiveFrom(peer); });
  if (reduction_) hasProgressed |= computeReduction(*reduction_);
  return hasProgressed;
}

/// Removes the first message from its queue once all of it is transferred.
void SharedMemory::popIfDone(Queue& queue) {
  MosaicMessage& message = *queue.front();
  if (message.moved < message.signature.bytes) return;
  message.state = MOSAIC_MESSAGE_DONE;
  queue.pop_front();
}

/// Writes as much of the messages to a peer into its ring buffer as fits.
bool SharedMemory::sendTo(uint32_t peer) {
  Queue& queue = sends_[peer];
  Channel channel = outgoingChannel(peer);
  uint64_t remainingBytes = kMaxCopyBytes;
  bool hasProgressed = false;
  while (!queue.empty() && remainingBytes > 0) {
    MosaicMessage& message = *queue.front();
    if (message.state != MOSAIC_MESSAGE_PENDING) break;
    if (!headerMovedFlag(message)) {
      if (isClosed(peer)) {
        message.state = MOSAIC_MESSAGE_CLOSED;
        break;
      }
      // A header is written only as a whole, because the reader reads it as a whole.
      if (channel.writableBytes() < sizeof message.signature) break;
      channel.write(&message.signature, sizeof message.signature);
      headerMovedFlag(message) = hasProgressed = true;
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

/// Reads a header and compares it. Returns false if it has not arrived, or is not the expected one.
bool SharedMemory::readHeader(MosaicMessage& message, Channel& channel) {
  if (channel.readableBytes() < sizeof message.received) return false;
  channel.read(&message.received, sizeof message.received);
  headerMovedFlag(message) = 1;
  if (matches_(&message.signature, &message.received)) return true;
  message.state = MOSAIC_MESSAGE_MISMATCH;
  return false;
}

/// Reads data that a peer has written into the tensors of the messages to receive.
bool SharedMemory::receiveFrom(uint32_t peer) {
  Queue& queue = receives_[peer];
  // Loaded before reading, so that everything that the peer wrote before it closed is read.
  const bool isPeerClosed = isClosed(peer);
  Channel channel = incomingChannel(peer);
  uint64_t remainingBytes = kMaxCopyBytes;
  bool hasProgressed = false, isStarved = false;
  while (!queue.empty() && remainingBytes > 0) {
    MosaicMessage& message = *queue.front();
    if (message.state != MOSAIC_MESSAGE_PENDING) break;
    if (!headerMovedFlag(message)) {
      isStarved = !readHeader(message, channel);
      hasProgressed |= headerMovedFlag(message) != 0;
      if (isStarved) break;
    }
    // Operands of a reduction stay in the ring buffer until those of all ranks have arrived.
    if (!message.data && message.signature.bytes > 0) {
      isStarved = channel.readableBytes() == 0;
      break;
    }
    const uint64_t chunkBytes = std::min(remainingBytes, message.signature.bytes - message.moved);
    const uint64_t count = channel.read(message.data + message.moved, chunkBytes);
    message.moved += count;
    remainingBytes -= count;
    hasProgressed |= count > 0;
    isStarved = message.moved < message.signature.bytes && count == 0;
    if (isStarved) break;
    popIfDone(queue);
  }
  // Wake a writer that sleeps on a full ring buffer only once half of it is free.
  if (hasProgressed && (queue.empty() || channel.isHalfEmpty())) notify(peer);
  if (isStarved && isPeerClosed && queue.front()->state == MOSAIC_MESSAGE_PENDING)
    queue.front()->state = MOSAIC_MESSAGE_CLOSED;
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
  const auto elementSize = static_cast<uint64_t>(dtypeBytes(dtype));
  alignas(64) float acc[kReduceBlockElements];
  alignas(64) float bounceBuffer[kReduceBlockElements];
  bool hasProgressed = false;
  while (r.reduced < r.count) {
    uint64_t readyElements = std::min(kReduceBlockElements, r.count - r.reduced);
    for (uint32_t i = 0; i + 1 < r.ranks; i++) {
      MosaicMessage& message = r.messages[i];
      const bool hasOperand = headerMovedFlag(message) && message.state == MOSAIC_MESSAGE_PENDING;
      readyElements = std::min(
          readyElements, hasOperand ? incomingChannel(localRanks_[message.peer]).readableBytes() / elementSize : 0);
    }
    // Reduces whole blocks only, except the last one, because small pieces would cost more time than their overlap
    // saves.
    if (readyElements < std::min(kReduceBlockElements, r.count - r.reduced)) break;
    for (uint32_t i = 0, next = 0; i < r.ranks; i++) {
      const void* operand = r.own + r.reduced * elementSize;
      if (i != r.position)
        operand = incomingChannel(localRanks_[r.messages[next++].peer])
                      .peekContiguous(readyElements * elementSize, bounceBuffer);
      reduction::accumulate(acc, operand, readyElements, dtype, op, i == 0);
    }
    reduction::finish(r.out + r.reduced * elementSize, acc, readyElements, dtype, op, r.ranks);
    for (uint32_t i = 0; i + 1 < r.ranks; i++) {
      MosaicMessage& message = r.messages[i];
      const uint32_t peer = localRanks_[message.peer];
      Channel channel = incomingChannel(peer);
      channel.consume(readyElements * elementSize);
      message.moved += readyElements * elementSize;
      popIfDone(receives_[peer]);
      if (message.state == MOSAIC_MESSAGE_DONE || channel.isHalfEmpty()) notify(peer);
    }
    r.reduced += readyElements;
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

/// The transport of a rank whose whole world is on one host.
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
