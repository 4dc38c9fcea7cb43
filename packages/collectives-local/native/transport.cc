// The transport of one rank over shared memory: messages are copied into the ring of a pair and out of it, a piece of
// each in turn. A reduction reads its operands where they lie in the rings.
#include "transport.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "mosaic/failure.h"
#include "mosaic/reduction.h"
#include "peer_processes.h"
#include "segment.h"

namespace mosaic {

namespace {

// What a message moves before the others get their turn, and before its peer is notified.
constexpr uint64_t kMaxCopyBytes = 128 << 10;
constexpr uint64_t kReduceBlock = 4096;  // elements

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

/// Messages by peer, in order, and the peers that have any: each is listed once, however often its queue runs empty
/// and fills between two sweeps.
class MessageQueues {
 public:
  using Queue = std::deque<MosaicMessage*>;

  void resize(uint32_t peers) { queues_.resize(peers); }
  Queue& operator[](uint32_t peer) { return queues_[peer].messages; }
  void push(MosaicMessage* message) {
    PeerQueue& queue = queues_[message->peer];
    queue.messages.push_back(message);
    if (!std::exchange(queue.isActive, true)) active_.push_back(message->peer);
  }
  /// Calls `step` for each peer that has messages. Whether any returned true.
  template <typename Step>
  bool forEachActive(Step step) {
    bool moved = false;
    std::erase_if(active_, [&](uint32_t peer) {
      moved |= step(peer);
      return !(queues_[peer].isActive = !queues_[peer].messages.empty());
    });
    return moved;
  }
  void clear() {
    for (PeerQueue& queue : queues_) queue = {};
    active_.clear();
  }

 private:
  struct PeerQueue {
    Queue messages;
    bool isActive = false;
  };
  std::vector<PeerQueue> queues_;
  std::vector<uint32_t> active_;
};

class SharedMemory {
 public:
  SharedMemory();
  const MosaicTransport* table() const { return &table_; }

 private:
  using Queue = MessageQueues::Queue;
  static SharedMemory& of(void* self) { return *static_cast<SharedMemory*>(self); }

  void connect(MosaicBootstrap& bootstrap);
  bool progress();
  bool sendTo(uint32_t peer);
  bool receiveFrom(uint32_t peer);
  bool open(MosaicMessage& message, Channel& channel);
  bool reduce(MosaicReduction& reduction);
  bool isClosed(uint32_t peer) const { return segment_->page(peer).closed.load() != 0; }
  void popIfDone(Queue& queue);
  void close();

  Channel outgoing(uint32_t peer) const { return segment_->channel(rank_, peer); }
  Channel incoming(uint32_t peer) const { return segment_->channel(peer, rank_); }
  void notify(uint32_t peer) const { segment_->page(peer).doorbell.ring(); }

  MosaicTransport table_;
  MosaicHostTransport host_;
  uint32_t rank_ = 0;
  MosaicMatches matches_ = nullptr;
  std::shared_ptr<Segment> segment_;
  /// This rank's page once it is connected: `interrupt` may come before.
  std::atomic<RankPage*> page_{nullptr};
  std::optional<PeerProcesses> processes_;
  MessageQueues sends_, receives_;
  MosaicReduction* reduction_ = nullptr;
};

// ── connecting

std::string valueOf(MosaicBootstrap& bootstrap, const char* key) {
  char value[64];
  uint64_t length = 0;
  MosaicFailure failure{};
  if (bootstrap.get(&bootstrap, key, value, sizeof value, &length, &failure) != 0) throw Failure(failure);
  return std::string(value, std::min<uint64_t>(length, sizeof value));
}

/// Rank 0 creates the segment. Between processes it waits until all have mapped it: it may be the first to end.
std::shared_ptr<Segment> share(MosaicBootstrap& bootstrap, bool isOneProcess) {
  constexpr const char *kKey = "shared-memory", *kComplete = "shared-memory/complete";
  const auto put = [&](const char* key, const std::string& value) {
    bootstrap.put(&bootstrap, key, value.data(), value.size());
  };
  if (bootstrap.rank == 0 && isOneProcess) {
    auto segment = Segment::anonymous(bootstrap.size);
    put(kKey, std::to_string(InProcessSegments::add(segment)));
    return segment;
  }
  if (bootstrap.rank == 0) {
    auto segment = Segment::create(bootstrap.size);
    put(kKey, segment->path());
    valueOf(bootstrap, kComplete);
    segment->closeFile();
    return segment;
  }
  const std::string value = valueOf(bootstrap, kKey);
  if (!isOneProcess) {
    auto segment = Segment::open(value, bootstrap.size);
    if (segment->isComplete()) put(kComplete, "");
    return segment;
  }
  if (auto segment = InProcessSegments::find(std::stoull(value))) return segment;
  throw Failure(MOSAIC_FAILURE_PEER_LOST, "connect: rank 0 closed while the ranks connected");
}

void SharedMemory::connect(MosaicBootstrap& bootstrap) {
  const uint32_t* hosts = bootstrap.hosts;
  if (!std::all_of(hosts, hosts + bootstrap.size, [&](uint32_t host) { return host == hosts[0]; })) {
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: shared memory connects the ranks of one host, and these are on "
                                           "several; use collectives that span hosts");
  }
  if (bootstrap.size > kMaxRanks) {
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: shared memory connects at most " + std::to_string(kMaxRanks) +
                                               " ranks, received " + std::to_string(bootstrap.size));
  }
  rank_ = bootstrap.rank;
  matches_ = bootstrap.matches;
  const int32_t* pids = bootstrap.pids;
  segment_ = share(bootstrap, std::all_of(pids, pids + bootstrap.size, [](int32_t pid) { return pid == getpid(); }));
  processes_.emplace(std::vector<pid_t>(pids, pids + bootstrap.size));
  sends_.resize(bootstrap.size);
  receives_.resize(bootstrap.size);
  page_ = &segment_->page(rank_);
}

void SharedMemory::close() {
  if (!segment_) return;
  segment_->page(rank_).closed = 1;
  for (uint32_t peer = 0; peer < segment_->size(); peer++) {
    if (peer != rank_) notify(peer);
  }
}

// ── messages

bool SharedMemory::progress() {
  bool moved = sends_.forEachActive([this](uint32_t peer) { return sendTo(peer); });
  moved |= receives_.forEachActive([this](uint32_t peer) { return receiveFrom(peer); });
  if (reduction_) moved |= reduce(*reduction_);
  return moved;
}

/// Takes the first message off its queue once all of it has moved.
void SharedMemory::popIfDone(Queue& queue) {
  MosaicMessage& message = *queue.front();
  if (message.moved < message.signature.bytes) return;
  message.state = MOSAIC_MESSAGE_DONE;
  queue.pop_front();
}

/// Writes what fits of the messages to a peer into its ring.
bool SharedMemory::sendTo(uint32_t peer) {
  Queue& queue = sends_[peer];
  Channel channel = outgoing(peer);
  uint64_t budget = kMaxCopyBytes;
  bool moved = false;
  while (!queue.empty() && budget > 0) {
    MosaicMessage& message = *queue.front();
    if (message.state != MOSAIC_MESSAGE_PENDING) break;
    uint64_t& isOpen = message.transport[0];
    if (!isOpen) {
      if (isClosed(peer)) {
        message.state = MOSAIC_MESSAGE_CLOSED;
        break;
      }
      // A header goes in whole or not at all: the reader may look at it in place.
      if (channel.writable() < sizeof message.signature) break;
      channel.write(&message.signature, sizeof message.signature);
      isOpen = moved = true;
    }
    const uint64_t wanted = std::min(budget, message.signature.bytes - message.moved);
    const uint64_t count = channel.write(message.data + message.moved, wanted);
    message.moved += count;
    budget -= count;
    moved |= count > 0;
    if (message.moved < message.signature.bytes && count == 0) break;
    popIfDone(queue);
  }
  if (moved) notify(peer);
  else if (!queue.empty() && isClosed(peer)) queue.front()->state = MOSAIC_MESSAGE_CLOSED;
  return moved;
}

/// Reads a header, and compares it. False: it has not come, or is another than expected.
bool SharedMemory::open(MosaicMessage& message, Channel& channel) {
  if (channel.readable() < sizeof message.received) return false;
  channel.read(&message.received, sizeof message.received);
  message.transport[0] = 1;
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
  uint64_t budget = kMaxCopyBytes;
  bool moved = false, starved = false;
  while (!queue.empty() && budget > 0) {
    MosaicMessage& message = *queue.front();
    if (message.state != MOSAIC_MESSAGE_PENDING) break;
    if (!message.transport[0]) {
      starved = !open(message, channel);
      moved |= message.transport[0] != 0;
      if (starved) break;
    }
    // Operands of a reduction stay in the ring until those of all ranks are there.
    if (!message.data && message.signature.bytes > 0) {
      starved = channel.readable() == 0;
      break;
    }
    const uint64_t wanted = std::min(budget, message.signature.bytes - message.moved);
    const uint64_t count = channel.read(message.data + message.moved, wanted);
    message.moved += count;
    budget -= count;
    moved |= count > 0;
    starved = message.moved < message.signature.bytes && count == 0;
    if (starved) break;
    popIfDone(queue);
  }
  // A writer that sleeps before a full ring is worth waking only for a good piece of it.
  if (moved && (queue.empty() || channel.isHalfEmpty())) notify(peer);
  if (starved && closed && queue.front()->state == MOSAIC_MESSAGE_PENDING) queue.front()->state = MOSAIC_MESSAGE_CLOSED;
  return moved;
}

// ── reductions

bool SharedMemory::reduce(MosaicReduction& r) {
  const auto isSent = [](const MosaicMessage& message) { return message.state == MOSAIC_MESSAGE_DONE; };
  if (r.after_sends && !std::all_of(r.sends, r.sends + r.sends_count, isSent)) return false;
  const auto dtype = static_cast<DType>(r.dtype);
  const auto op = static_cast<ReduceOp>(r.op);
  const auto width = static_cast<uint64_t>(dtypeBytes(dtype));
  alignas(64) float acc[kReduceBlock];
  alignas(64) float bounce[kReduceBlock];
  bool moved = false;
  while (r.reduced < r.count) {
    uint64_t ready = std::min(kReduceBlock, r.count - r.reduced);
    for (uint32_t i = 0; i + 1 < r.ranks; i++) {
      const MosaicMessage& message = r.messages[i];
      const bool isOpen = message.transport[0] && message.state == MOSAIC_MESSAGE_PENDING;
      ready = std::min(ready, isOpen ? incoming(message.peer).readable() / width : 0);
    }
    // Whole blocks only, but for the last: a trickle would cost more than it hides.
    if (ready < std::min(kReduceBlock, r.count - r.reduced)) break;
    for (uint32_t i = 0, next = 0; i < r.ranks; i++) {
      const void* operand = r.own + r.reduced * width;
      if (i != r.position) operand = incoming(r.messages[next++].peer).peek(ready * width, bounce);
      reduction::accumulate(acc, operand, ready, dtype, op, i == 0);
    }
    reduction::finish(r.out + r.reduced * width, acc, ready, dtype, op, r.ranks);
    for (uint32_t i = 0; i + 1 < r.ranks; i++) {
      MosaicMessage& message = r.messages[i];
      Channel channel = incoming(message.peer);
      channel.consume(ready * width);
      message.moved += ready * width;
      popIfDone(receives_[message.peer]);
      if (message.state == MOSAIC_MESSAGE_DONE || channel.isHalfEmpty()) notify(message.peer);
    }
    r.reduced += ready;
    moved = true;
  }
  if (r.reduced == r.count) reduction_ = nullptr;
  return moved;
}

// ── the table

SharedMemory::SharedMemory() : table_{}, host_{} {
  table_ = {MOSAIC_TRANSPORT_ABI, MOSAIC_ORDER_HOST, "shared memory", &host_, nullptr};
  host_.self = this;
  host_.connect = [](void* self, MosaicBootstrap* bootstrap, MosaicFailure* failure) {
    return captured(failure, "connect", [&] { of(self).connect(*bootstrap); });
  };
  host_.interrupt = [](void* self) {
    if (RankPage* page = of(self).page_) page->doorbell.ring();
  };
  host_.send = [](void* self, MosaicMessage* message) { of(self).sends_.push(message); };
  host_.receive = [](void* self, MosaicMessage* message) { of(self).receives_.push(message); };
  host_.reduce = [](void* self, MosaicReduction* reduction) {
    for (uint32_t i = 0; i + 1 < reduction->ranks; i++) of(self).host_.receive(self, &reduction->messages[i]);
    of(self).reduction_ = reduction;
  };
  host_.progress = [](void* self) -> int { return of(self).progress(); };
  host_.wait = [](void* self, int64_t nanoseconds, int (*ready)(void*), void* arg) {
    of(self).page_.load()->doorbell.sleep(nanoseconds, [&] { return ready(arg) != 0; });
  };
  host_.lost = [](void* self, uint32_t rank) -> int {
    return !of(self).isClosed(rank) && of(self).processes_->hasExited(rank) && !of(self).isClosed(rank);
  };
  host_.cancel = [](void* self) {
    of(self).sends_.clear();
    of(self).receives_.clear();
    of(self).reduction_ = nullptr;
  };
  host_.close = [](void* self) { of(self).close(); };
  host_.free = [](void* self) { delete &of(self); };
}

}  // namespace

const MosaicTransport* openSharedMemory() { return (new SharedMemory)->table(); }

}  // namespace mosaic
