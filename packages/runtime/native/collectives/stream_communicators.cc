// Creation and closing of the communicators of a stream-ordered engine.
#include <sched.h>

#include <algorithm>
#include <set>
#include <utility>

#include "collectives/stream_engine.h"
#include "mosaic/clock.h"

namespace mosaic {

namespace {

constexpr int64_t kPollIntervalNs = 100'000;
/// Ranks flush together. A rank that never flushes must not delay the others for longer.
constexpr int64_t kFlushTimeoutNs = 2'000'000'000;

}  // namespace

void StreamEngine::connect(MosaicBootstrap& bootstrap) {
  port_.enter(&port_);
  void* stream = nullptr;
  throwIfFailed([&](auto* failure) { return port_.stream_create(&port_, &stream, failure); });
  {
    const std::lock_guard lock(launchMutex_);
    stream_ = stream;
  }
  MosaicCommunicator* world = nullptr;
  throwIfFailed([&](auto* failure) { return transport_.connect(transport_.self, &bootstrap, &world, failure); });
  communicators_.push_back(world);
  connectDeadlineNs_ = monotonicNs() + options().connectTimeoutNs;
  waitUntilReady(world);
  warmUp(world, *getGroup(0));
  isConnected_ = true;
}

bool StreamEngine::openSplitGroup(Operation& op, const std::vector<int64_t>& colors) {
  // Colors of transports must be small and non-negative.
  const std::set<int64_t> distinctColors(colors.begin(), colors.end());
  const auto color = static_cast<int32_t>(std::distance(distinctColors.begin(), distinctColors.find(op.split->color)));
  MosaicCommunicator* const parent = communicators_.at(op.groupNumber);
  if (!waitUntilReady(parent)) return false;
  MosaicCommunicator* splitCommunicator = nullptr;
  throwIfFailed([&](auto* failure) {
    return transport_.split(transport_.self, parent, color, op.split->splitGroup->rank, &splitCommunicator, failure);
  });
  communicators_.push_back(splitCommunicator);
  return waitUntilReady(parent) && waitUntilReady(splitCommunicator) &&
         warmUp(splitCommunicator, *op.split->splitGroup);
}

bool StreamEngine::enqueueOn(MosaicCommunicator* communicator, const MosaicStreamStage& stage) {
  throwIfFailed([&](auto* failure) {
    return transport_.enqueue(transport_.self, communicator, &stage, stream_, failure);
  });
  return waitUntilReady(communicator);
}

bool StreamEngine::isReady(MosaicCommunicator* communicator) {
  MosaicFailure failure{};
  const int state = transport_.state(transport_.self, communicator, &failure);
  // Once connected, the engine first waits for the control plane to deliver the cause.
  if (state == MOSAIC_COMMUNICATOR_FAILED && !isConnected_) throw Failure(failure);
  return state == MOSAIC_COMMUNICATOR_READY;
}

bool StreamEngine::waitUntilReady(MosaicCommunicator* communicator) {
  return pollUntil([&] { return isReady(communicator); });
}

template <typename Condition>
bool StreamEngine::pollUntil(Condition condition) {
  for (int spins = 0; !condition(); spins++) {
    if (!isConnected_)
      throwIfConnectFailed();
    else if (!poll()) return false;
    if (spins < kMaxSpins) sched_yield();
    else sleepFor(kPollIntervalNs);
  }
  return true;
}

/// Throws if the ranks cannot connect. `connectFailure` then formats the cause that the control plane delivered.
void StreamEngine::throwIfConnectFailed() {
  bool isPeerLost = false;
  {
    const std::lock_guard lock(mutex_);
    isPeerLost = !events_.lostRanks.empty() || !events_.failedRanks.empty() || events_.controlLostReason;
  }
  if (isStopped() || isPeerLost) {
    throw Failure(MOSAIC_FAILURE_PEER_LOST, "connect: a rank exited while the ranks were connecting");
  }
  if (monotonicNs() < connectDeadlineNs_) return;
  const std::string remedy = transport_.remedy ? std::string("; ") + transport_.remedy : "";
  throw Failure(MOSAIC_FAILURE_TIMEOUT, "connect: rank " + std::to_string(options().rank) + ": " + name_ +
                                            " timed out after " + formatSeconds(options().connectTimeoutNs) +
                                            " while connecting the ranks" + remedy);
}

bool StreamEngine::warmUp(MosaicCommunicator* communicator, const Group& group) {
  const uint32_t size = group.size();
  if (!transport_.warm_up || size == 1) return true;
  // One byte to send to each rank, and one to receive from each.
  const Memory memory(port_, stream_, 2 * size);
  const uint64_t ownAddress = memory.address() + group.rank;
  std::vector<MosaicStreamMessage> sends, receives;
  for (uint32_t peer = 0; peer < size; peer++) {
    if (peer == group.rank) continue;
    sends.push_back({ownAddress, 1, peer});
    receives.push_back({memory.address() + size + peer, 1, peer});
  }
  const MosaicStreamStage stages[] = {
      {sends.data(), receives.data(), size - 1, size - 1, MOSAIC_STREAM_NONE, 0, 0, 0, 0},
      {nullptr, nullptr, 0, 0, MOSAIC_STREAM_ALL_GATHER, 0, ownAddress, memory.address(), 1},
      {nullptr, nullptr, 0, 0, MOSAIC_STREAM_BROADCAST, 0, memory.address(), memory.address(), 1},
  };
  for (const MosaicStreamStage& stage : stages) {
    if (!enqueueOn(communicator, stage)) return false;
  }
  const auto releaseEvent = [this](void* event) { port_.event_release(&port_, event); };
  const std::unique_ptr<void, decltype(releaseEvent)> doneEvent(recordEventOnStream(stream_, false), releaseEvent);
  MosaicFailure failure{};
  int state = MOSAIC_EVENT_PENDING;
  const bool isFinished =
      pollUntil([&] { return (state = port_.event_query(&port_, doneEvent.get(), &failure)) != MOSAIC_EVENT_PENDING; });
  if (isFinished && state == MOSAIC_EVENT_FAILED) throw Failure(failure);
  return isFinished;
}

// ── closing

void StreamEngine::closeTransport() {
  const bool isOrderlyClose = !hasFailed() && !isStopped();
  if (isOrderlyClose) flush();
  std::vector<MosaicCommunicator*> unflushedCommunicators;
  std::erase_if(communicators_, [&](MosaicCommunicator* communicator) {
    MosaicFailure ignored;
    const bool isFlushed =
        isOrderlyClose && transport_.state(transport_.self, communicator, &ignored) == MOSAIC_COMMUNICATOR_READY;
    if (!isFlushed) unflushedCommunicators.push_back(communicator);
    return !isFlushed;
  });
  abortCommunicators(unflushedCommunicators);
  // Communicators that were split from others are destroyed first. This may wait for all work of the device, so it
  // comes after the aborts.
  for (auto communicator = communicators_.rbegin(); communicator != communicators_.rend(); communicator++) {
    transport_.destroy(transport_.self, *communicator);
  }
  communicators_.clear();
  void* stream = nullptr;
  {
    const std::lock_guard lock(launchMutex_);
    stream = std::exchange(stream_, nullptr);
  }
  if (stream) port_.stream_destroy(&port_, stream);
}

/// Flushes all communicators together, because flushing one may wait for the other ranks' flush, but does not wait for
/// ranks that died or failed.
void StreamEngine::flush() {
  for (auto communicator = communicators_.rbegin(); communicator != communicators_.rend(); communicator++) {
    transport_.finalize(transport_.self, *communicator);
  }
  const auto isFlushing = [&](uint32_t number) {
    MosaicFailure ignored;
    if (transport_.state(transport_.self, communicators_[number], &ignored) != MOSAIC_COMMUNICATOR_BUSY) return false;
    const auto group = getGroup(number);
    const std::lock_guard lock(mutex_);
    return std::ranges::none_of(group->ranks, [&](uint32_t rank) {
      return events_.lostRanks.contains(rank) || events_.failedRanks.contains(rank);
    });
  };
  const int64_t deadline = monotonicNs() + kFlushTimeoutNs;
  for (; monotonicNs() < deadline && !isStopped(); sleepFor(kPollIntervalNs)) {
    bool isAnyFlushing = false;
    for (uint32_t number = 0; number < communicators_.size(); number++)
      isAnyFlushing = isAnyFlushing || isFlushing(number);
    if (!isAnyFlushing) return;
  }
}

void StreamEngine::abortCommunicators(const std::vector<MosaicCommunicator*>& communicators) {
  if (communicators.empty()) return;
  const auto enter = [](void* arg) {
    auto* const port = static_cast<MosaicDevicePort*>(arg);
    port->enter(port);
  };
  transport_.abort(transport_.self, communicators.data(), static_cast<uint32_t>(communicators.size()), enter, &port_);
}

}  // namespace mosaic
