#include "collectives/stream_engine.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "mosaic/clock.h"

namespace mosaic {

namespace {

constexpr int64_t kPollIntervalNs = 1'000'000, kIdleSleepNs = 1'000'000'000;

static_assert(static_cast<int>(ReduceOp::Sum) == MOSAIC_REDUCE_SUM &&
              static_cast<int>(ReduceOp::Mean) == MOSAIC_REDUCE_MEAN &&
              static_cast<int>(ReduceOp::Max) == MOSAIC_REDUCE_MAX);

uint64_t deviceAddress(const void* data) { return reinterpret_cast<uintptr_t>(data); }

/// Receive buffers. A barrier: one byte per rank, never read. A reduction: the operands of the other ranks.
uint64_t scratchBytes(const Operation& op) {
  if (op.op() == OpKind::Barrier) return op.group->size();
  uint64_t maxBytes = 0;
  for (const Stage& stage : op.schedule.stages) {
    uint64_t bytes = 0;
    if (stage.reduction)
      for (const Message& message : stage.receives) bytes += message.signature.bytes;
    maxBytes = std::max(maxBytes, bytes);
  }
  return maxBytes;
}

/// Returns the stage as one operation of the transport, if it can be one: an all-gather of equal shares, a broadcast,
/// or a barrier, which is an all-gather of one byte per rank.
std::optional<MosaicStreamStage> makeCollectiveStage(const Operation& op, const Stage& stage, uint64_t memory) {
  MosaicStreamStage collectiveStage{};
  if (op.op() == OpKind::Barrier) {
    collectiveStage.collective = MOSAIC_STREAM_ALL_GATHER;
    collectiveStage.in = memory + op.group->rank;
    collectiveStage.out = memory;
    collectiveStage.bytes = 1;
    return collectiveStage;
  }
  if (!stage.transportCollective) return std::nullopt;
  collectiveStage.collective = stage.transportCollective->kind;
  collectiveStage.root = stage.transportCollective->root;
  collectiveStage.in = deviceAddress(stage.transportCollective->in);
  collectiveStage.out = deviceAddress(stage.transportCollective->out);
  collectiveStage.bytes = stage.transportCollective->bytes;
  return collectiveStage;
}

}  // namespace

StreamEngine::Memory::Memory(MosaicDevicePort& port, void* stream, uint64_t bytes) : port_(port), stream_(stream) {
  if (bytes > 0)
    throwIfFailed([&](auto* failure) { return port_.allocate(&port_, &address_, bytes, stream_, failure); });
}

StreamEngine::Memory::~Memory() {
  if (address_) port_.release(&port_, address_, stream_);
}

StreamEngine::StreamEngine(TransportPtr transport, const ComputeStream& compute, std::unique_ptr<ControlPlane> control,
                           const EngineOptions& options, CompletionCallback onConnected)
    : Engine(std::move(transport), std::move(control), options, std::move(onConnected)),
      transport_(*table().stream),
      name_(table().name),
      port_(*compute.port),
      compute_(compute.handle) {
  start("mosaic-comm");
}

StreamEngine::~StreamEngine() { stop(); }

// ── on any thread

void StreamEngine::wake() { wakeEvent_.signal(); }

std::shared_ptr<Operation> StreamEngine::makeOperation(bool waitsForCompute) {
  auto op = std::make_shared<StreamOperation>();
  if (waitsForCompute) {
    port_.enter(&port_);
    op->readyEvent = recordEventOnStream(compute_, false);
  }
  return op;
}

void* StreamEngine::recordEventOnStream(void* stream, bool isTimed) {
  void* event = nullptr;
  throwIfFailed([&](auto* failure) { return port_.event_record(&port_, stream, isTimed, &event, failure); });
  return event;
}

void StreamEngine::onDropped(Operation& op) { release(static_cast<StreamOperation&>(op)); }

bool StreamEngine::isDone(Operation& operation) {
  auto& op = static_cast<StreamOperation&>(operation);
  const std::lock_guard lock(launchMutex_);
  if (hasFailed() || op.state == StreamOperation::State::Queued) return false;
  if (op.state == StreamOperation::State::Finished) return true;
  port_.enter(&port_);
  MosaicFailure ignored;
  return port_.event_query(&port_, op.doneEvent, &ignored) == MOSAIC_EVENT_DONE;
}

void StreamEngine::release(StreamOperation& op) {
  for (void** event : {&op.readyEvent, &op.beginEvent, &op.doneEvent}) {
    if (*event) port_.event_release(&port_, std::exchange(*event, nullptr));
  }
}

void StreamEngine::wait(uint64_t number) {
  const auto op = std::static_pointer_cast<StreamOperation>(findOperation(number));
  if (op) {
    throwIfBehindSplit(number);
    std::unique_lock lock(launchMutex_);
    op->isAwaited = true;
    launchedCondition_.wait(lock, [&] { return op->state != StreamOperation::State::Queued; });
    if (op->state == StreamOperation::State::Launched) {
      port_.enter(&port_);
      return throwIfFailed([&](auto* failure) { return port_.event_wait(&port_, compute_, op->doneEvent, failure); });
    }
  }
  // The operation is over. If it failed, the device fails with it; parts of it may already be on the stream.
  if (const auto failure = failureAt(number)) {
    enqueueComputeWait();
    port_.fail(&port_, &*failure);
  }
}

void StreamEngine::enqueueComputeWait() {
  const std::lock_guard lock(launchMutex_);
  if (!stream_) return;
  port_.enter(&port_);
  void* event = nullptr;
  MosaicFailure ignored;  // the device has failed permanently, and runs no more work
  if (port_.event_record(&port_, stream_, 0, &event, &ignored) != 0) return;
  port_.event_wait(&port_, compute_, event, &ignored);
  port_.event_release(&port_, event);
}

// ── the communication thread

void StreamEngine::run() {
  for (int spins = 0; !isFinished(); spins++) {
    if (hasFailed()) {
      sleepFor(kIdleSleepNs);
    } else if (!poll()) {
      continue;
    } else if (const auto op = next()) {
      launch(op);
      spins = 0;
    } else if (spins < kMaxSpins) {
      sched_yield();
    } else if (!isFinished()) {  // the last operation of a closing rank may just have completed
      sleepFor(front() ? kPollIntervalNs : kIdleSleepNs);
    }
  }
}

void StreamEngine::sleepFor(int64_t nanoseconds) {
  pollfd descriptor{wakeEvent_.fd(), POLLIN, 0};
  const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  ppoll(&descriptor, 1, &limit, nullptr);
  if (descriptor.revents) wakeEvent_.reset();
}

bool StreamEngine::poll() {
  retireCompleted();
  reportIfRequested();
  const bool hasEvents = consumeNewEvents();
  const auto first = std::static_pointer_cast<StreamOperation>(front());
  if (hasFailed() || !first) return !hasFailed();
  if (first->startedAt == 0) {
    MosaicFailure ignored;  // `deviceFailure` reports it
    if (!first->readyEvent || port_.event_query(&port_, first->readyEvent, &ignored) != MOSAIC_EVENT_PENDING)
      beginOperation(*first);
  }
  auto diagnosis = diagnose(*first);
  if (!diagnosis && hasEvents) {
    for (const auto& op : queuedOperations()) {
      if ((diagnosis = peerFailure(*op)) || (diagnosis = exitFailure(*op))) break;
    }
  }
  if (diagnosis) fail(*diagnosis);
  return !hasFailed();
}

void StreamEngine::retireCompleted() {
  while (!hasFailed()) {
    const auto op = std::static_pointer_cast<StreamOperation>(front());
    if (!op || op->state != StreamOperation::State::Launched) return;
    MosaicFailure failure{};
    const int state = port_.event_query(&port_, op->doneEvent, &failure);
    if (state == MOSAIC_EVENT_PENDING) return;
    if (state == MOSAIC_EVENT_FAILED) return fail(localFailure(*op, MOSAIC_FAILURE_DEVICE, failure.message));
    markFinished(*op);
    std::optional<TraceRecord> trace;
    if (op->beginEvent)
      trace = op->traceRecord(port_.event_time(&port_, op->beginEvent), port_.event_time(&port_, op->doneEvent));
    release(*op);
    finishOperation(op, trace);
  }
}

/// Marks the operation finished. Its events are not waited for any more.
void StreamEngine::markFinished(StreamOperation& op) {
  const std::lock_guard lock(launchMutex_);
  op.state = StreamOperation::State::Finished;
  launchedCondition_.notify_all();
}

/// Returns the next operation that may be launched. A split waits until all earlier operations on the stream are done,
/// because NCCL may deadlock if it splits a communicator on which an operation runs.
std::shared_ptr<StreamEngine::StreamOperation> StreamEngine::next() {
  auto op = std::static_pointer_cast<StreamOperation>(findOperation(lastLaunchedNumber_ + 1));
  if (!op || (op->op() == OpKind::Split && op != front())) return nullptr;
  lastLaunchedNumber_++;
  return op;
}

void StreamEngine::launch(const std::shared_ptr<StreamOperation>& op) {
  if (const auto diagnosis = peerFailure(*op)) return fail(*diagnosis);
  if (const auto diagnosis = exitFailure(*op)) return fail(*diagnosis);
  try {
    if (op->op() == OpKind::Split) return launchSplit(op);
    if (!enqueue(*op)) return;
  } catch (const Failure& failure) {
    return fail(localFailure(*op, failure.code(), failure.what()));
  }
  const std::lock_guard lock(launchMutex_);
  op->state = StreamOperation::State::Launched;
  launchedCondition_.notify_all();
}

void StreamEngine::launchSplit(const std::shared_ptr<StreamOperation>& op) {
  beginOperation(*op);
  if (!executeSplit(op)) return;
  markFinished(*op);
  std::optional<TraceRecord> trace;
  if (isTracing()) trace = op->traceRecord(op->startedAt, monotonicNs());
  finishOperation(op, trace);
  op->onCompleted(nullptr);
}

/// Returns false if the engine has failed.
bool StreamEngine::enqueue(StreamOperation& op) {
  if (!waitUntilReady(communicators_.at(op.groupNumber))) return false;
  throwIfFailed([&](auto* failure) { return port_.event_wait(&port_, stream_, op.readyEvent, failure); });
  if (isTracing()) op.beginEvent = recordEventOnStream(stream_, true);
  const Memory memory(port_, stream_, scratchBytes(op));
  for (const Stage& stage : op.schedule.stages) {
    if (!enqueueStage(op, stage, memory.address())) return false;
  }
  op.doneEvent = recordEventOnStream(stream_, op.beginEvent != nullptr);
  return true;
}

bool StreamEngine::enqueueStage(const StreamOperation& op, const Stage& stage, uint64_t memory) {
  MosaicCommunicator* const communicator = communicators_.at(op.groupNumber);
  if (const auto collectiveStage = makeCollectiveStage(op, stage, memory))
    return enqueueOn(communicator, *collectiveStage);
  for (const Copy& copy : stage.copies) {
    throwIfFailed([&](auto* failure) {
      return port_.copy(&port_, deviceAddress(copy.to), deviceAddress(copy.from), copy.bytes, stream_, failure);
    });
  }
  if (!enqueueMessages(communicator, stage, memory)) return false;
  if (!stage.reduction) return true;
  const MosaicRankReduction reduction{deviceAddress(stage.reduction->out),
                                      deviceAddress(stage.reduction->own),
                                      memory,
                                      static_cast<int64_t>(stage.reduction->count),
                                      static_cast<int32_t>(op.group->size()),
                                      static_cast<int32_t>(op.group->rank),
                                      op.signature.dtype,
                                      op.signature.reduce};
  throwIfFailed([&](auto* failure) { return port_.reduce(&port_, &reduction, stream_, failure); });
  return true;
}

bool StreamEngine::enqueueMessages(MosaicCommunicator* communicator, const Stage& stage, uint64_t memory) {
  std::vector<MosaicStreamMessage> sends, receives;
  // The size is known on both sides, so messages of 0 bytes are not sent.
  for (const Message& message : stage.sends) {
    if (message.signature.bytes > 0)
      sends.push_back({deviceAddress(message.data), message.signature.bytes, message.peer});
  }
  for (const Message& message : stage.receives) {
    const uint64_t bytes = message.signature.bytes;
    const uint64_t to = stage.reduction ? std::exchange(memory, memory + bytes) : deviceAddress(message.data);
    if (bytes > 0) receives.push_back({to, bytes, message.peer});
  }
  if (sends.empty() && receives.empty()) return true;
  MosaicStreamStage messages{};
  messages.sends = sends.data();
  messages.receives = receives.data();
  messages.sends_count = static_cast<uint32_t>(sends.size());
  messages.receives_count = static_cast<uint32_t>(receives.size());
  return enqueueOn(communicator, messages);
}

// ── failures

std::optional<MosaicFailure> StreamEngine::deviceFailure(Operation&) {
  MosaicFailure failure{};
  return port_.failure(&port_, &failure) ? std::optional(failure) : std::nullopt;
}

std::optional<Engine::Diagnosis> StreamEngine::diagnoseTransport(Operation& op) {
  if (auto diagnosis = exitFailure(op)) return diagnosis;
  for (MosaicCommunicator* const communicator : communicators_) {
    MosaicFailure failure{};
    if (transportError_ || transport_.state(transport_.self, communicator, &failure) != MOSAIC_COMMUNICATOR_FAILED)
      continue;
    transportError_ = TransportError{failure, monotonicNs()};
  }
  if (!transportError_ || monotonicNs() - transportError_->reportTimeNs < kFailureCauseGraceNs) return std::nullopt;
  return transportError(op);
}

std::optional<Engine::Diagnosis> StreamEngine::transportError(const Operation& op) {
  if (!transportError_) return std::nullopt;
  const MosaicFailure& failure = transportError_->failure;
  return localFailure(op, static_cast<MosaicFailureCode>(failure.code), failure.message);
}

void StreamEngine::onFailed(const MosaicFailure& failure, const std::vector<std::shared_ptr<Operation>>& ops) {
  {
    const std::lock_guard lock(launchMutex_);
    // The device fails before compute is released from its wait, because compute must not use data that has not
    // arrived.
    for (const auto& op : ops) {
      if (static_cast<StreamOperation&>(*op).isAwaited) port_.fail(&port_, &failure);
    }
    for (const auto& op : ops) static_cast<StreamOperation&>(*op).state = StreamOperation::State::Finished;
    launchedCondition_.notify_all();
  }
  abortCommunicators(std::exchange(communicators_, {}));
  // The memory of operations that are not waited for may be reused from now on.
  enqueueComputeWait();
  for (const auto& op : ops) release(static_cast<StreamOperation&>(*op));
}

}  // namespace mosaic
